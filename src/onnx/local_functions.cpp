#include "onnx/local_functions.h"

#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

namespace detent::onnx {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;

pbf_reader reader_of(std::string_view message) { return {message.data(), message.size()}; }

OpsetImport opset_of(const Wire& raw) {
  OpsetImport opset;
  auto reader = reader_of(raw.view());
  while (reader.next()) {
    if (reader.tag() == 1 && reader.wire_type() == pbf_wire_type::length_delimited) {
      opset.domain = reader.get_string();
    } else if (reader.tag() == 2 && reader.wire_type() == pbf_wire_type::varint) {
      opset.version = reader.get_int64();
    } else {
      reader.skip();
    }
  }
  if (opset.domain == "ai.onnx") opset.domain.clear();
  return opset;
}

LocalFunction function_of(const Wire& raw) {
  LocalFunction function;
  auto reader = reader_of(raw.view());
  while (reader.next()) {
    if (reader.wire_type() != pbf_wire_type::length_delimited) {
      reader.skip();
      continue;
    }
    const auto number = reader.tag();
    const auto data = reader.get_view();
    const std::string_view view(data.data(), data.size());
    switch (number) {
      case 1: function.name = view; break;
      case 4: function.inputs.emplace_back(view); break;
      case 5: function.outputs.emplace_back(view); break;
      case 7: function.nodes.emplace_back(raw.part(view)); break;
      case 9: function.opsets.push_back(opset_of(raw.part(view))); break;
      case 10: function.domain = view; break;
      case 11: function.defaults.emplace_back(raw.part(view)); break;
      case 13: function.overload = view; break;
      default: break;
    }
  }
  return function;
}

}  // namespace

std::vector<LocalFunction> read_functions(const Model& model) {
  std::vector<LocalFunction> functions;
  with_damage_as_bad_input("a model-local function", [&] {
    for (const auto& field : model.other) {
      if (field.number == kFunctionField) functions.push_back(function_of(field.wire.part(payload_of(field))));
    }
  });
  return functions;
}

std::string reference_of(const Attribute& attribute) {
  constexpr std::uint32_t kRefAttrName = 21;
  auto reader = reader_of(attribute.raw().view());
  while (reader.next()) {
    if (reader.tag() == kRefAttrName && reader.wire_type() == pbf_wire_type::length_delimited)
      return reader.get_string();
    reader.skip();
  }
  return {};
}

Attribute renamed(const Attribute& attribute, const std::string& name) {
  std::string bytes;
  protozero::pbf_writer(bytes).add_string(1, name);
  auto reader = reader_of(attribute.raw().view());
  const char* begin = reader.data().data();
  while (reader.next()) {
    const auto number = reader.tag();
    reader.skip();
    if (number != 1) bytes.append(begin, static_cast<std::size_t>(reader.data().data() - begin));
    begin = reader.data().data();
  }
  return Attribute(Wire::own(std::move(bytes)));
}

}  // namespace detent::onnx
