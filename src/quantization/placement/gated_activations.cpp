#include "quantization/placement/gated_activations.h"

#include <algorithm>
#include <string>

#include "graph/constants.h"
#include "graph/traits.h"

namespace detent::quantization {
namespace {

const onnx::Node& node_at(const onnx::Model& model, int position) {
  return model.graph.nodes[static_cast<std::size_t>(position)];
}

bool is_of_convolution(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int maker = index.producer(value);
  return maker != graph::kNone && graph::has_trait(node_at(model, maker), graph::Trait::convolution);
}

// The sum of the value and one number that is all that reads the value, or kNone.
int sum_behind(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int sum = graph::only_reader(index, value);
  if (sum == graph::kNone || !node_at(model, sum).is("Add")) return graph::kNone;
  const auto step = graph::float32_constant_step(model, index, node_at(model, sum));
  return step && step->constant->count() == 1 ? sum : graph::kNone;
}

}  // namespace

std::vector<Gate> find_gated_activations(const onnx::Model& model, const graph::Index& index) {
  std::vector<Gate> gates;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    const auto& node = model.graph.nodes[n];
    if (!node.is("Sigmoid") && !node.is("HardSigmoid")) continue;
    const std::string &value = node.inputs().front(), &gate = node.outputs().front();
    const int product = graph::only_reader(index, gate);
    if (product == graph::kNone || !is_of_convolution(model, index, value)) continue;
    const auto& mul = node_at(model, product);
    const bool reads_both = mul.is("Mul") && (mul.inputs()[0] == value || mul.inputs()[1] == value);
    if (reads_both) gates.push_back({static_cast<int>(n), product, sum_behind(model, index, mul.outputs().front())});
  }
  return gates;
}

GateNames all_gates(const onnx::Model& model, const graph::Index& index) {
  GateNames names;
  for (const auto& gate : find_gated_activations(model, index))
    names.insert(node_at(model, gate.sigmoid).outputs().front());
  return names;
}

}  // namespace detent::quantization
