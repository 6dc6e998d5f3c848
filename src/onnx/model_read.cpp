#include "onnx/model_read.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <protozero/pbf_message.hpp>
#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include "base/error.h"
#include "base/text.h"
#include "onnx/functions.h"
#include "onnx/model.h"

namespace detent::onnx {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;

constexpr std::uint32_t kMetadata = 14;  // ModelProto.metadata_props

bool is_message(const pbf_reader& reader) { return reader.wire_type() == pbf_wire_type::length_delimited; }

Wire take(pbf_reader& reader, const Wire& parent) {
  const auto view = reader.get_view();
  return parent.part({view.data(), view.size()});
}

// Walks the fields of a message: `known(reader)` returns true when it has consumed the field; all others are collected.
template <class Known>
std::vector<RawField> walk(const Wire& raw, Known known) {
  std::vector<RawField> other;
  pbf_reader reader(raw.view().data(), raw.view().size());
  const char* begin = reader.data().data();
  while (reader.next()) {
    const auto number = reader.tag();
    if (!known(reader)) {
      reader.skip();
      other.push_back({number, raw.part({begin, static_cast<std::size_t>(reader.data().data() - begin)})});
    }
    begin = reader.data().data();
  }
  return other;
}

Dim read_dim(const Wire& raw) {
  Dim dim;
  walk(raw, [&](pbf_reader& r) {
    if (r.tag() == 1 && r.wire_type() == pbf_wire_type::varint) {
      dim.value = r.get_int64();
    } else if (r.tag() == 2 && is_message(r)) {
      dim.symbol = r.get_string();
    } else {
      return false;
    }
    return true;
  });
  if (dim.value < 0) dim.value = -1;
  return dim;
}

void read_tensor_type(const Wire& raw, ValueInfo& info) {
  walk(raw, [&](pbf_reader& r) {
    if (r.tag() == 1 && r.wire_type() == pbf_wire_type::varint) {
      info.type = static_cast<DataType>(r.get_int32());
    } else if (r.tag() == 2 && is_message(r)) {
      info.shape.emplace();
      walk(take(r, raw), [&](pbf_reader& d) {
        if (d.tag() != 1 || !is_message(d)) return false;
        info.shape->push_back(read_dim(take(d, raw)));
        return true;
      });
    } else {
      return false;
    }
    return true;
  });
}

ValueInfo read_value_info(const Wire& raw) {
  ValueInfo info;
  info.raw = raw;
  walk(raw, [&](pbf_reader& r) {
    if (r.tag() == 1 && is_message(r)) {
      info.name = r.get_string();
    } else if (r.tag() == 2 && is_message(r)) {
      walk(take(r, raw), [&](pbf_reader& type) {
        if (type.tag() != 1 || !is_message(type)) return false;
        read_tensor_type(take(type, raw), info);
        return true;
      });
    } else {
      return false;
    }
    return true;
  });
  return info;
}

OpsetImport read_opset(const Wire& raw) {
  OpsetImport opset;
  opset.raw = raw;
  walk(raw, [&](pbf_reader& r) {
    if (r.tag() == 1 && is_message(r)) {
      opset.domain = r.get_string();
    } else if (r.tag() == 2 && r.wire_type() == pbf_wire_type::varint) {
      opset.version = r.get_int64();
    } else {
      return false;
    }
    return true;
  });
  if (opset.domain == "ai.onnx") opset.domain.clear();
  return opset;
}

// FunctionProto: name 1, domain 10. SparseTensorProto: values 1 (a tensor whose name, field 8, is the initializer's).
std::string function_name(std::string_view payload) {
  std::string name, domain;
  walk(Wire(payload, nullptr), [&](pbf_reader& r) {
    if ((r.tag() != 1 && r.tag() != 10) || !is_message(r)) return false;
    auto& text = r.tag() == 1 ? name : domain;  // chosen before: in debug builds, reading the value forgets the tag
    text = r.get_string();
    return true;
  });
  return domain + "::" + name;
}

std::string sparse_name(std::string_view payload) {
  std::string name;
  const Wire raw(payload, nullptr);
  walk(raw, [&](pbf_reader& r) {
    if (r.tag() != 1 || !is_message(r)) return false;
    walk(take(r, raw), [&](pbf_reader& t) {
      if (t.tag() != 8 || !is_message(t)) return false;
      name = t.get_string();
      return true;
    });
    return true;
  });
  return name;
}

// Puts the data of every tensor in the field's message inline.
void inline_field(RawField& field, Message kind, ExternalInliner& inliner) {
  const auto payload = payload_of(field);
  const Wire before = field.wire.part(payload), after = inliner.inlined(kind, before);
  if (after.view().data() != before.view().data()) field = string_field(field.number, after.view());
}

// Without an inliner nodes and sparse tensors stay as they are: those of a body were made whole with the model.
Graph read_graph_fields(const Wire& raw, const std::shared_ptr<const MappedFile>& file, ExternalFiles& external,
                        ExternalInliner* inliner, const std::string& where) {
  Graph graph;
  graph.other = walk(raw, [&](pbf_reader& r) {
    if (!is_message(r)) return false;
    switch (r.tag()) {
      case 1: {
        const Wire node = take(r, raw);
        graph.nodes.emplace_back(inliner != nullptr ? inliner->inlined(Message::node, node) : node);
        return true;
      }
      case 5: graph.initializers.push_back(read_tensor(take(r, raw), file, external, where)); return true;
      case 11: graph.inputs.push_back(read_value_info(take(r, raw))); return true;
      case 12: graph.outputs.push_back(read_value_info(take(r, raw))); return true;
      case 13: graph.value_infos.push_back(read_value_info(take(r, raw))); return true;
      default: return false;
    }
  });
  for (auto& field : graph.other) {
    if (field.number != 15) continue;
    if (inliner != nullptr) inline_field(field, Message::sparse_tensor, *inliner);
    graph.sparse_initializers.push_back(sparse_name(payload_of(field)));
  }
  return graph;
}

void read_model_fields(Model& model, const Wire& raw, const std::string& where) {
  bool has_graph = false;
  ExternalInliner inliner(*model.external, where);
  model.other = walk(raw, [&](pbf_reader& r) {
    if (r.tag() == 7 && is_message(r)) {
      if (has_graph) throw bad_input(fmt::format("{}: more than one graph", where));
      has_graph = true;
      model.graph = read_graph_fields(take(r, raw), model.file, *model.external, &inliner, where);
    } else if (r.tag() == 8 && is_message(r)) {
      model.opsets.push_back(read_opset(take(r, raw)));
    } else {
      return false;
    }
    return true;
  });
  if (!has_graph) throw bad_input(fmt::format("{} is not an ONNX model: it has no graph", where));
  for (auto& field : model.other) {
    if (field.number == 20) inline_field(field, Message::training_info, inliner);
    if (field.number == 25) inline_field(field, Message::function, inliner);
    if (field.number == 25) model.functions.push_back(function_name(payload_of(field)));
    if (field.number != 1) continue;
    pbf_reader reader(field.wire.view().data(), field.wire.view().size());
    if (reader.next() && reader.wire_type() == pbf_wire_type::varint) model.ir_version = reader.get_int64();
  }
}

// StringStringEntryProto: the key is field 1, the value field 2.
std::pair<std::string, std::string> read_entry(const RawField& field) {
  std::pair<std::string, std::string> found;
  const auto payload = payload_of(field);
  pbf_reader entry(payload.data(), payload.size());
  while (entry.next()) {
    if (!is_message(entry) || entry.tag() > 2) {
      entry.skip();
      continue;
    }
    auto& text = entry.tag() == 1 ? found.first : found.second;
    text = entry.get_string();
  }
  return found;
}

// What is asked for later is known to be whole.
void check_metadata(const Model& model) {
  for (const auto& field : model.other) {
    if (field.number == kMetadata) (void)read_entry(field);
  }
}

}  // namespace

Graph read_graph(const Wire& raw, const std::shared_ptr<const MappedFile>& file, ExternalFiles& external,
                 const std::string& where) {
  return with_damage_as_bad_input(where, [&] { return read_graph_fields(raw, file, external, nullptr, where); });
}

Model read_model(const std::filesystem::path& path) {
  Model model;
  model.path = path;
  model.file = MappedFile::open(path, "model");
  model.external = std::make_shared<ExternalFiles>(path);
  const std::string where = fmt::format("model '{}'", path.string());
  const auto bytes = model.file->bytes();
  if (bytes.empty()) throw bad_input(fmt::format("{} is empty", where));
  if (bytes.size() > std::numeric_limits<std::uint32_t>::max()) {
    throw bad_input(fmt::format("{} is {}; one protobuf file holds less than 4 GiB", where, format_size(bytes.size())),
                    "store the weights as external data beside the model");
  }
  with_damage_as_bad_input(where, [&] { read_model_fields(model, Wire(as_text(bytes), model.file), where); });
  with_damage_as_bad_input(where, [&] {
    check_metadata(model);
    check_functions(model, where);
    check_scope(model, where);
  });
  if (model.opsets.empty()) throw bad_input(fmt::format("{} is not an ONNX model: it imports no opset", where));
  return model;
}

Tensor read_attribute_tensor(const Model& model, const Node& node, const Attribute& attribute) {
  const Wire raw = attribute.as_tensor();
  const bool in_file = model.file && model.file->contains(as_byte_span(raw.view()));
  return read_tensor(raw, in_file ? model.file : nullptr, *model.external,
                     fmt::format("model '{}', node {}", model.path.string(), node.label()));
}

std::int64_t Model::opset(std::string_view domain) const noexcept {
  for (const auto& o : opsets) {
    if (o.domain == domain) return o.version;
  }
  return 0;
}

void Model::set_opset(std::string_view domain, std::int64_t version) {
  for (auto& o : opsets) {
    if (o.domain != domain) continue;
    if (o.version != version) o.raw = {};
    o.version = version;
    return;
  }
  opsets.push_back({std::string(domain), version, {}});
}

void Model::set_ir_version(std::int64_t version) {
  ir_version = version;
  set_field(other, varint_field(1, version));
}

void Model::set_producer(std::string_view name, std::string_view version) {
  set_field(other, string_field(2, name));
  set_field(other, string_field(3, version));
}

std::string Model::metadata(std::string_view key) const {
  for (const auto& field : other) {
    if (field.number != kMetadata) continue;
    auto [name, value] = read_entry(field);
    if (name == key) return value;
  }
  return {};
}

void Model::add_metadata(std::string_view key, std::string_view value) {
  const auto name = string_field(1, key), text = string_field(2, value);
  other.push_back(string_field(kMetadata, std::string(name.wire.view()) + std::string(text.wire.view())));
}

namespace {

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
