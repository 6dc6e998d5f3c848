#include "quantization/placement/left_in_float.h"

#include <fmt/format.h>

#include "graph/traits.h"

namespace detent::quantization {

std::vector<std::string> LeftInFloat::notes() const {
  std::vector<std::string> notes;
  for (const auto& [why, nodes] : nodes_) {
    notes.push_back(fmt::format(
        "{}{} in float: {}", nodes.front(),
        nodes.size() > 1 ? fmt::format(" and {} more stay", nodes.size() - 1) : std::string(" stays"), why.first));
  }
  return notes;
}

std::size_t LeftInFloat::count() const {
  std::size_t count = 0;
  for (const auto& [why, nodes] : nodes_) count += nodes.size();
  return count;
}

bool reads_empty_weight(const onnx::Model& model, const graph::Index& index, const onnx::Node& product) {
  if (product.inputs().size() <= graph::kWeightInput) return false;
  const int at = index.initializer(product.inputs()[graph::kWeightInput]);
  return at != graph::kNone && model.graph.initializers[static_cast<std::size_t>(at)].count() == 0;
}

std::string reason_against_gemm(const onnx::Node& gemm) {
  if (gemm.int_or("transA", 0) != 0) return "its first input is transposed";
  if (gemm.float_or("alpha", 1) != 1) return "its alpha is not 1";
  if (gemm.float_or("beta", 1) != 1 && gemm.inputs().size() > 2) return "its beta is not 1";
  return {};
}

}  // namespace detent::quantization
