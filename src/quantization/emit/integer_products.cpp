#include "quantization/emit/integer_products.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/index.h"
#include "graph/traits.h"
#include "onnx/write.h"
#include "quantization/emit/barriers.h"

namespace detent::quantization {
namespace {

using onnx::Node;

const Node* producer_of(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const int producer = index.producer(value);
  return producer == graph::kNone ? nullptr : &model.graph.nodes[static_cast<std::size_t>(producer)];
}

bool multiplies_integers(const onnx::Model& model, const graph::Index& index, const Node& node) {
  if (!graph::is_matrix_product(node)) return false;
  return std::all_of(node.inputs().begin(), node.inputs().begin() + 2, [&](const auto& input) {
    const auto* producer = producer_of(model, index, input);
    return producer != nullptr && graph::is_dequantize_linear(*producer);
  });
}

// Where only a QuantizeLinear reads a value, or only those outside of the graph, the runtime has a kernel.
bool is_read_in_float(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const auto readers = index.consumers(value);
  return std::any_of(readers.begin(), readers.end(), [&](int reader) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
    return !graph::is_quantize_linear(node) && node.bodies().empty();
  });
}

bool is_bias(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const auto* maker = producer_of(model, index, value);
  if (maker == nullptr) return index.initializer(value) != graph::kNone;
  return graph::is_dequantize_linear(*maker) && index.initializer(maker->inputs()[0]) != graph::kNone;
}

// Of two matrices, for which it has a kernel where what is added is a bias, or of more axes, with Reshapes: that has
// one only where a QuantizeLinear reads the sum, and not a faster one.
bool makes_gemm(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                const std::string& product, const std::string& added) {
  if (graph::rank_of(types, product) == 2) return !is_bias(model, index, added);
  return graph::static_shape(types, product) && graph::rank_of(types, added) == 1;
}

// What an Add reads of products that it makes a Gemm with, for this reader alone.
std::set<std::string> fused_inputs(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                                   const Node& add) {
  std::set<std::string> fused;
  if (!add.is("Add")) return fused;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& value = add.inputs()[i];
    const auto* maker = producer_of(model, index, value);
    if (maker != nullptr && maker->is("MatMul") && multiplies_integers(model, index, *maker) &&
        index.consumers(value).size() == 1 && !index.is_output(value) &&
        makes_gemm(model, index, types, value, add.inputs()[1 - i]))
      fused.insert(value);
  }
  return fused;
}

Node barrier_before(const Node& node, const std::string& value, graph::Index& index) {
  Node barrier("Max", index.fresh_name(value + "_Barrier"), {value}, {index.fresh_name(value + "_in_float")});
  barrier.set_body(node.body());
  return barrier;
}

}  // namespace

void keep_integer_products(Emitted& emitted, const graph::ValueTypes& types) {
  auto& model = emitted.model;
  graph::Index index(model);
  std::multimap<int, Node> before;
  std::string zero;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    auto& node = model.graph.nodes[n];
    for (const auto& value : fused_inputs(model, index, types, node))
      before.emplace(static_cast<int>(n), barrier_before(node, value, index));
    if (!node.is("Relu") && !node.is("Clip")) continue;
    const std::string product = node.inputs()[0];
    const auto* maker = producer_of(model, index, product);
    if (maker == nullptr || !multiplies_integers(model, index, *maker) ||
        !is_read_in_float(model, index, node.outputs()[0]))
      continue;
    if (node.is("Clip")) {
      before.emplace(static_cast<int>(n), barrier_before(node, product, index));
      continue;
    }
    if (zero.empty()) {
      zero = index.fresh_name("zero");
      model.graph.initializers.push_back(
          onnx::make_tensor<float>(zero, onnx::DataType::float32, {}, std::vector{0.0F}));
    }
    node.set_op_type("Max");
    node.set_inputs({product, zero});
  }
  insert_before(std::move(before), emitted);
}

}  // namespace detent::quantization
