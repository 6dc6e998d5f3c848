#include "onnx/inline_external.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "base/bytes.h"
#include "base/error.h"
#include "onnx/tensor.h"

namespace detent::onnx {
namespace {

using protozero::pbf_wire_type;

constexpr int kMaxDepth = 64;  // graphs within graphs; real models stay below 5

struct Child {
  Message in;
  std::uint32_t field;
  Message kind;
  bool repeated;
};

constexpr std::array<Child, 16> kChildren{{
    {Message::graph, 1, Message::node, true},
    {Message::graph, 5, Message::tensor, true},
    {Message::graph, 15, Message::sparse_tensor, true},
    {Message::node, 5, Message::attribute, true},
    {Message::attribute, 5, Message::tensor, false},
    {Message::attribute, 6, Message::graph, false},
    {Message::attribute, 10, Message::tensor, true},
    {Message::attribute, 11, Message::graph, true},
    {Message::attribute, 22, Message::sparse_tensor, false},
    {Message::attribute, 23, Message::sparse_tensor, true},
    {Message::sparse_tensor, 1, Message::tensor, false},
    {Message::sparse_tensor, 2, Message::tensor, false},
    {Message::function, 7, Message::node, true},
    {Message::function, 11, Message::attribute, true},
    {Message::training_info, 1, Message::graph, false},
    {Message::training_info, 2, Message::graph, false},
}};

const Child* child_of(Message in, std::uint32_t field) {
  for (const auto& child : kChildren) {
    if (child.field == field && child.in == in) return &child;
  }
  return nullptr;
}

// TensorProto.data_location; the last one counts.
bool is_external(const Wire& raw) {
  bool external = false;
  protozero::pbf_reader reader(raw.view().data(), raw.view().size());
  while (reader.next()) {
    if (reader.tag() == 14 && reader.wire_type() == pbf_wire_type::varint) {
      external = reader.get_int32() == 1;
    } else {
      reader.skip();
    }
  }
  return external;
}

}  // namespace

Wire ExternalInliner::inlined(Message kind, const Wire& raw) {
  std::string out;
  return rewrite(kind, raw, 0, out) ? Wire::own(std::move(out)) : raw;
}

bool ExternalInliner::rewrite(Message kind, const Wire& raw, int depth, std::string& out) {
  if (kind == Message::tensor) return is_external(raw) && rewrite_tensor(raw, out);
  if (kind == Message::graph && ++depth > kMaxDepth)
    throw bad_input(fmt::format("{}: graphs are nested more than {} deep", where_, kMaxDepth));
  bool changed = false;
  std::uint64_t seen = 0;  // fields that may stand once
  protozero::pbf_reader reader(raw.view().data(), raw.view().size());
  const char* const begin = reader.data().data();
  const char* at = begin;
  while (reader.next()) {
    const std::uint32_t number = reader.tag();
    const Child* child = reader.wire_type() == pbf_wire_type::length_delimited ? child_of(kind, number) : nullptr;
    std::string inner;
    bool replaced = false;
    if (child == nullptr) {
      reader.skip();
    } else {
      if (!child->repeated && (seen & std::uint64_t{1} << number) != 0)
        throw bad_input(fmt::format("{}: a message stands twice where one is allowed", where_));
      seen |= child->repeated ? 0 : std::uint64_t{1} << number;
      const auto view = reader.get_view();
      replaced = rewrite(child->kind, raw.part({view.data(), view.size()}), depth, inner);
    }
    const char* const end = reader.data().data();
    if (replaced && !changed) {
      out.assign(begin, at);
      changed = true;
    }
    if (replaced) {
      protozero::pbf_writer(out).add_bytes(number, inner);
    } else if (changed) {
      out.append(at, end);
    }
    at = end;
  }
  return changed;
}

bool ExternalInliner::rewrite_tensor(const Wire& raw, std::string& out) {
  const Tensor tensor = read_tensor(raw, nullptr, files_, where_);
  const std::uint64_t size = tensor.data.size();
  if (size > left_) {
    throw bad_input(fmt::format("{}: tensors of attributes, bodies and functions have more than {} of external data",
                                where_, format_size(max_)),
                    "make large ones initializers of the main graph");
  }
  left_ -= size;
  out.reserve(size + raw.view().size());
  protozero::pbf_reader reader(raw.view().data(), raw.view().size());
  const char* at = reader.data().data();
  while (reader.next()) {
    const std::uint32_t number = reader.tag();
    reader.skip();
    const char* const end = reader.data().data();
    const bool is_data = (number >= 4 && number <= 7) || (number >= 9 && number <= 11) || number == 13 || number == 14;
    if (!is_data) out.append(at, end);
    at = end;
  }
  const auto bytes = as_text(tensor.data.bytes());
  protozero::pbf_writer(out).add_bytes(9, bytes.data(), bytes.size());
  return true;
}

}  // namespace detent::onnx
