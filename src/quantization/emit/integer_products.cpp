#include "quantization/emit/integer_products.h"

#include <algorithm>
#include <map>
#include <set>
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

// What an Add reads of products that it makes a Gemm with: of two matrices, for this reader alone.
std::set<std::string> fused_inputs(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                                   const Node& add) {
  std::set<std::string> fused;
  if (!add.is("Add")) return fused;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& value = add.inputs()[i];
    const auto* maker = producer_of(model, index, value);
    const auto* other = producer_of(model, index, add.inputs()[1 - i]);
    const bool is_bias = other == nullptr
                             ? index.initializer(add.inputs()[1 - i]) != graph::kNone
                             : other->is("DequantizeLinear") && index.initializer(other->inputs()[0]) != graph::kNone;
    if (!is_bias && maker != nullptr && maker->is("MatMul") && multiplies_integers(model, index, *maker) &&
        index.consumers(value).size() == 1 && !index.is_output(value) && graph::rank_of(types, value) == 2)
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
