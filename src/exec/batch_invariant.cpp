#include "exec/batch_invariant.h"

#include <vector>

#include "graph/index.h"

namespace detent::exec {
namespace {

using onnx::Attribute;
using onnx::Node;

constexpr const char* kMicrosoftDomain = "com.microsoft";

bool is_float(const onnx::Model& model, const graph::ValueTypes& types, const std::string& value) {
  return graph::type_of(model, types, value) == onnx::DataType::float32;
}

bool may_have_one_row(const graph::ValueTypes& types, const std::string& value) {
  const auto found = types.find(value);
  return found != types.end() && found->second.shape && found->second.shape->at(0).value <= 1;
}

bool is_product_of_matrices(const onnx::Model& model, const graph::ValueTypes& types, const Node& node) {
  const bool gemm = node.is("Gemm") && node.int_or("transA", 0) == 0 && node.float_or("alpha", 1.0F) == 1.0F;
  if (!gemm && !node.is("MatMul")) return false;
  const std::string& a = node.inputs()[0];
  const std::string& b = node.inputs()[1];
  if (!is_float(model, types, a) || !is_float(model, types, b) || graph::rank_of(types, b) != 2) return false;
  // The runtime tells an unknown rank as 0, which a factor cannot have.
  const std::size_t rank = graph::rank_of(types, a).value_or(0);
  return (rank == 0 && node.is("MatMul")) || (rank == 2 && may_have_one_row(types, a));
}

// -1 times the product. A MatMul does not become a Gemm: that gives its result a known rank behind factors of unknown
// rank, and for each value of known rank the runtime's memory planner looks through all earlier ones.
Node negative(const Node& node, const std::string& output) {
  const Attribute factor = Attribute::of_float("alpha", -1.0F);
  if (node.is("MatMul")) return {"FusedMatMul", node.name(), node.inputs(), {output}, {factor}, kMicrosoftDomain};
  return {"Gemm",
          node.name(),
          node.inputs(),
          {output},
          {factor, Attribute::of_float("beta", -node.float_or("beta", 1.0F)),
           Attribute::of_int("transB", node.int_or("transB", 0))}};
}

}  // namespace

void make_batch_invariant(onnx::Model& model, const graph::ValueTypes& types) {
  graph::Index index(model);
  std::vector<Node> nodes;
  for (auto& node : model.graph.nodes) {
    if (!is_product_of_matrices(model, types, node)) {
      nodes.push_back(std::move(node));
      continue;
    }
    const std::string& output = node.outputs().front();
    nodes.push_back(negative(node, index.fresh_name(output + "@negative")));
    nodes.push_back({"Neg", index.fresh_name(output + "@negate"), {nodes.back().outputs().front()}, {output}});
    if (node.is("MatMul") && model.opset(kMicrosoftDomain) == 0) model.set_opset(kMicrosoftDomain, 1);
  }
  model.graph.nodes = std::move(nodes);
}

}  // namespace detent::exec
