#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>

#include "base/bytes.h"
#include "graph/bfloat16.h"
#include "graph/bodies.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/half.h"
#include "onnx/retyped.h"
#include "onnx/write.h"

namespace detent::graph {
namespace {

using onnx::Attribute;
using onnx::DataType;
using onnx::Node;

// Attributes that name an element type.
bool names_a_type(const Attribute& attribute) {
  static constexpr std::string_view kNames[] = {"to",           "dtype",      "output_datatype",
                                                "output_dtype", "stash_type", "precision"};
  return attribute.kind() == Attribute::Kind::i &&
         std::find(std::begin(kNames), std::end(kNames), attribute.name()) != std::end(kNames);
}

onnx::TensorData as_float32(const onnx::Tensor& tensor, const Store& store) {
  std::vector<std::byte> bytes;
  bytes.reserve(tensor.data.size() * 2);
  const auto convert = tensor.type == DataType::float16 ? onnx::from_float16 : onnx::from_bfloat16;
  tensor.data.write_to([&](std::span<const std::byte> piece) {
    for (std::size_t at = 0; at + 1 < piece.size(); at += 2) {
      std::uint16_t low = 0;
      std::memcpy(&low, piece.data() + at, sizeof low);
      const float value = convert(low);
      const auto* raw = reinterpret_cast<const std::byte*>(&value);
      bytes.insert(bytes.end(), raw, raw + sizeof value);
    }
  });
  return store(std::move(bytes));
}

onnx::TensorData in_memory(std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); }

using Names = std::unordered_map<std::string, std::string>;

class Raising {
 public:
  enum class From { both, bfloat16 };
  Raising(onnx::Model& model, const Store& store, From from = From::both, DataType to = DataType::float32)
      : model_(model), store_(store), from_(from), to_(to) {}

  Notes run(bool keep_io_types) {
    std::vector<onnx::ValueInfo> kept;
    Names names;
    Index index(model_);
    if (keep_io_types) {
      for (const auto* infos : {&model_.graph.inputs, &model_.graph.outputs}) {
        for (const auto& info : *infos) {
          if (is_low(info.type)) names.try_emplace(info.name, index.fresh_name(info.name + "_float32"));
        }
      }
    }
    raise(model_.graph, names, store_, keep_io_types);
    for (auto& body : model_.bodies) {
      raise(body.inputs);
      raise(body.outputs);
    }
    if (keep_io_types) add_casts(names, index);
    if (count_ == 0) return {};
    Notes notes{count_with_noun(count_, "tensor") + " of 16-bit floats became float32"};
    if (!model_.functions.empty()) notes.emplace_back("types in model-local functions stay as they are");
    return notes;
  }

 private:
  bool is_low(DataType type) const noexcept {
    return type == DataType::bfloat16 || (type == DataType::float16 && from_ == From::both);
  }

  // As float16 the bits of a bfloat16 stay as they are.
  onnx::Tensor raised(const onnx::Tensor& tensor, const Store& store) const {
    return {tensor.name, to_,  tensor.dims, to_ == DataType::float32 ? as_float32(tensor, store) : tensor.data,
            {},          false};
  }

  // Names are of values that go by another name inside of the graph.
  void raise(onnx::Graph& graph, const Names& names, const Store& store, bool keep_io_types) {
    for (auto& tensor : graph.initializers) {
      if (!is_low(tensor.type)) continue;
      tensor = raised(tensor, store);
      ++count_;
    }
    for (auto* infos : {&graph.inputs, &graph.outputs, &graph.value_infos})
      raise(*infos, keep_io_types && infos != &graph.value_infos);
    for (auto& node : graph.nodes) raise(node, names);
  }

  void raise(std::vector<onnx::ValueInfo>& infos, bool stays = false) {
    for (auto& info : infos) {
      if (!is_low(info.type)) continue;
      ++count_;
      if (!stays) info = onnx::retyped(info, to_, info.shape);
    }
  }

  void raise(Node& node, const Names& names) {
    for (std::size_t i = 0; i < node.inputs().size(); ++i) {
      if (const auto found = names.find(node.inputs()[i]); found != names.end()) node.set_input(i, found->second);
    }
    for (std::size_t o = 0; o < node.outputs().size(); ++o) {
      if (const auto found = names.find(node.outputs()[o]); found != names.end()) node.set_output(o, found->second);
    }
    const auto attributes = node.attributes();
    for (const auto& attribute : attributes) {
      if (names_a_type(attribute) && is_low(static_cast<DataType>(attribute.as_int()))) {
        node.set_attribute(Attribute::of_int(attribute.name(), static_cast<std::int64_t>(to_)));
        ++count_;
      } else if (attribute.kind() == Attribute::Kind::t) {
        const auto tensor = onnx::read_attribute_tensor(model_, node, attribute);
        if (!is_low(tensor.type)) continue;
        node.set_attribute(Attribute::of_messages(attribute.name(), Attribute::Kind::t,
                                                  {onnx::encode_tensor(raised(tensor, in_memory))}));
        ++count_;
      }
    }
    if (has_body(node)) raise_bodies(node, names);
  }

  void raise_bodies(Node& node, const Names& names) {
    auto bodies = read_bodies(model_, node);
    std::size_t next = 0;
    const auto attributes = node.attributes();
    for (const auto& attribute : attributes) {
      if (!is_body(attribute)) continue;
      std::vector<std::string> messages;
      for (std::size_t i = 0; i < attribute.as_graphs().size(); ++i) {
        auto& body = bodies.at(next++);
        raise(body, names, in_memory, false);
        for (auto& output : body.outputs) {
          if (const auto found = names.find(output.name); found != names.end())
            output = onnx::make_value_info(found->second, output.type, std::move(output.shape));
        }
        messages.push_back(onnx::encode_graph(body));
      }
      node.set_attribute(Attribute::of_messages(attribute.name(), attribute.kind(), messages));
    }
  }

  void add_casts(const Names& names, Index& index) {
    const auto cast = [&](const std::string& from, const std::string& to, DataType type) {
      return Node("Cast", index.fresh_name(to + "_Cast"), {from}, {to},
                  {Attribute::of_int("to", static_cast<std::int64_t>(type))});
    };
    std::vector<Node> nodes;
    for (const auto& input : model_.graph.inputs) {
      if (names.contains(input.name)) nodes.push_back(cast(input.name, names.at(input.name), DataType::float32));
    }
    for (auto& node : model_.graph.nodes) nodes.push_back(std::move(node));
    for (const auto& output : model_.graph.outputs) {
      if (names.contains(output.name) && !index.is_input(output.name))
        nodes.push_back(cast(names.at(output.name), output.name, output.type));
    }
    model_.graph.nodes = std::move(nodes);
    for (auto& tensor : model_.graph.initializers) {
      const auto found = names.find(tensor.name);  // that is a graph output as well
      if (found != names.end()) tensor.name = found->second;
    }
  }

  onnx::Model& model_;
  const Store& store_;
  const From from_;
  const DataType to_;
  std::size_t count_ = 0;
};

}  // namespace

Notes half_floats_to_float32(onnx::Model& model, const Store& store, bool keep_io_types) {
  return Raising(model, store).run(keep_io_types);
}

void relabel_bfloat16_as_float16(onnx::Model& model) {
  Raising(model, in_memory, Raising::From::bfloat16, DataType::float16).run(false);
}

void bfloat16_to_float32(onnx::Model& model, const Store& store) {
  Raising(model, store, Raising::From::bfloat16).run(false);
}

void idle_casts_to_identities(onnx::Model& model, const ValueTypes& types) {
  for (auto& node : model.graph.nodes) {
    if (!node.is("Cast")) continue;
    const auto to = static_cast<DataType>(node.int_or("to", 0));
    if (type_of(model, types, node.inputs().at(0)) != to) continue;
    node = Node("Identity", node.name(), node.inputs(), node.outputs());
  }
}

}  // namespace detent::graph
