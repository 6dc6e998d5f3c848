#include "quantization/emit/barriers.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/index.h"
#include "graph/traits.h"

namespace detent::quantization {
namespace {

using onnx::Node;

const Node& node_at(const onnx::Model& model, int position) {
  return model.graph.nodes[static_cast<std::size_t>(position)];
}

// What the optimizer takes: products that may have a bias.
bool is_layer(const Node& node) {
  const auto& traits = graph::traits_of(node);
  return traits.is(graph::Trait::product) && traits.bias != graph::OperatorTraits::kNoInput;
}

// Reads a value with one scale and has float weights.
bool is_between_integers_in_float(const onnx::Model& model, const graph::Index& index, const Node& node) {
  const int dequantize = index.producer(node.inputs()[0]);
  const int weight = index.initializer(node.inputs()[1]);
  if (dequantize == graph::kNone || weight == graph::kNone) return false;
  const auto& before = node_at(model, dequantize);
  if (before.op_type() != "DequantizeLinear") return false;
  const int scale = index.initializer(before.inputs()[1]);
  const auto& tensors = model.graph.initializers;
  return scale != graph::kNone && tensors[static_cast<std::size_t>(scale)].count() == 1 &&
         tensors[static_cast<std::size_t>(weight)].type == onnx::DataType::float32;
}

// The QuantizeLinear that the layer's output goes to, or kNone.
int quantizer_behind(const onnx::Model& model, const graph::Index& index, const Node& layer) {
  const auto* node = &layer;
  while (true) {
    const auto readers = index.consumers(node->outputs()[0]);
    if (readers.size() != 1) return graph::kNone;
    node = &node_at(model, readers.front());
    if (node->op_type() == "QuantizeLinear") return readers.front();
    if (!graph::has_trait(*node, graph::Trait::clips)) return graph::kNone;
  }
}

// The QuantizeLinear that makes integers of a pooling in float, or kNone.
int quantizer_of_float_pool(const onnx::Model& model, const graph::Index& index, const Node& node) {
  if (!node.is("MaxPool")) return graph::kNone;
  const int producer = index.producer(node.inputs()[0]);
  if (producer != graph::kNone && node_at(model, producer).op_type() == "DequantizeLinear") return graph::kNone;
  for (const int reader : index.consumers(node.outputs()[0])) {
    if (node_at(model, reader).op_type() == "QuantizeLinear") return reader;
  }
  return graph::kNone;
}

}  // namespace

void add_barriers(Emitted& emitted) {
  auto& quantized = emitted.model;
  graph::Index index(quantized);
  std::multimap<int, Node> before;
  for (const auto& node : quantized.graph.nodes) {
    int quantizer = quantizer_of_float_pool(quantized, index, node);
    if (is_layer(node) && node.inputs().size() >= 2 && is_between_integers_in_float(quantized, index, node))
      quantizer = quantizer_behind(quantized, index, node);
    if (quantizer == graph::kNone) continue;
    const std::string value = node_at(quantized, quantizer).inputs()[0];
    before.emplace(quantizer,
                   Node("Max", index.fresh_name(value + "_Barrier"), {value}, {index.fresh_name(value + "_in_float")}));
  }
  insert_before(std::move(before), emitted);
}

void insert_before(std::multimap<int, Node> before, Emitted& emitted) {
  if (before.empty()) return;
  auto& quantized = emitted.model;
  std::vector<Node> nodes;
  std::vector<std::size_t> moved_to;
  for (std::size_t n = 0; n < quantized.graph.nodes.size(); ++n) {
    auto& node = quantized.graph.nodes[n];
    const auto [first, last] = before.equal_range(static_cast<int>(n));
    for (auto found = first; found != last; ++found) {
      for (std::size_t i = 0; i < node.inputs().size(); ++i) {
        if (node.inputs()[i] == found->second.inputs()[0]) node.set_input(i, found->second.outputs()[0]);
      }
      nodes.push_back(std::move(found->second));
    }
    moved_to.push_back(nodes.size());
    nodes.push_back(std::move(node));
  }
  quantized.graph.nodes = std::move(nodes);
  for (auto& place : emitted.provenance.nodes) {
    if (place) place = moved_to[*place];
  }
}

}  // namespace detent::quantization
