#include "quantization/emit/integer_products.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/index.h"
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
  if (!node.is("MatMul") && !node.is("Gemm")) return false;
  return std::all_of(node.inputs().begin(), node.inputs().begin() + 2, [&](const auto& input) {
    const auto* producer = producer_of(model, index, input);
    return producer != nullptr && producer->op_type() == "DequantizeLinear";
  });
}

// Where only a QuantizeLinear reads a value, or only those outside of the graph, the runtime has a kernel.
bool is_read_in_float(const onnx::Model& model, const graph::Index& index, const std::string& value) {
  const auto readers = index.consumers(value);
  return std::any_of(readers.begin(), readers.end(), [&](int reader) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(reader)];
    return node.op_type() != "QuantizeLinear" && node.bodies().empty();
  });
}

}  // namespace

void keep_integer_products(Emitted& emitted) {
  auto& model = emitted.model;
  graph::Index index(model);
  std::map<int, Node> before;
  std::string zero;
  for (std::size_t n = 0; n < model.graph.nodes.size(); ++n) {
    auto& node = model.graph.nodes[n];
    if (!node.is("Relu") && !node.is("Clip")) continue;
    const std::string product = node.inputs()[0];
    const auto* maker = producer_of(model, index, product);
    if (maker == nullptr || !multiplies_integers(model, index, *maker) ||
        !is_read_in_float(model, index, node.outputs()[0]))
      continue;
    if (node.is("Clip")) {
      Node barrier("Max", index.fresh_name(product + "_Barrier"), {product}, {index.fresh_name(product + "_in_float")});
      barrier.set_body(node.body());
      before.emplace(static_cast<int>(n), std::move(barrier));
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
