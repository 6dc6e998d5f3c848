#include "pipeline/blocks/computed_weights.h"

#include <fmt/format.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "exec/emit.h"
#include "quantization/blocks/block_weights.h"

namespace detent::pipeline {
namespace {

constexpr std::uint64_t kSmall = 4096;  // bytes that need no blocks

// Nothing where they take more than so many bytes.
std::optional<std::vector<onnx::Tensor>> results_of(const onnx::Model& model, const exec::Runtime& runtime,
                                                    std::vector<int>& nodes, std::uint64_t most_bytes) {
  std::vector<std::string> outputs;
  for (const int n : nodes) {
    const auto& made = model.graph.nodes[static_cast<std::size_t>(n)].outputs();
    outputs.insert(outputs.end(), made.begin(), made.end());
  }
  const auto types = exec::infer_value_types(runtime, exec::constant_part(model, nodes, outputs));
  nodes = graph::constant_nodes(model, types);
  std::uint64_t bytes = 0;
  for (const int n : nodes) {
    for (const auto& output : model.graph.nodes[static_cast<std::size_t>(n)].outputs())
      bytes += graph::static_bytes(types, output).value_or(0);
  }
  if (bytes > most_bytes) return std::nullopt;
  return exec::compute_constants(runtime, model, nodes);
}

// Results that no blocks take the place of.
std::set<std::string> left_over(const onnx::Model& model, const std::set<std::string>& results,
                                const quantization::BlockPlacement& placement) {
  auto left = results;
  for (const auto& tensor : placement.tensors) {
    if (!tensor.stays) left.erase(model.graph.initializers[tensor.initializer].name);
  }
  return left;
}

}  // namespace

graph::Notes fold_computed_weights(onnx::Model& model, const QuantConfig& config, const WeightsOnlyConfig& blocks,
                                   const ComputedWeights& how) {
  const auto original = model;
  std::set<std::string> left;
  while (true) {
    auto nodes = graph::weight_makers(model, left);
    if (nodes.empty()) return {};
    graph::merge_equal_constants(model, nodes);
    const auto* runtime = how.runtime();
    const auto tensors = runtime == nullptr ? std::nullopt : results_of(model, *runtime, nodes, how.most_bytes);
    if (!tensors) {
      model = original;
      return {fmt::format("weights that nodes make of constants stay in float: {}",
                          runtime == nullptr ? "computing them takes ONNX Runtime"
                                             : "computing them takes more memory than a quarter of the budget")};
    }
    std::set<std::string> results;
    for (const auto& tensor : *tensors) {
      if (tensor.data.size() > kSmall) results.insert(tensor.name);
    }
    auto notes = graph::replace_by_constants(model, nodes, *tensors);
    const auto more = left_over(model, results, quantization::place_blocks(model, config, blocks));
    if (more.empty()) return notes;
    left.insert(more.begin(), more.end());
    model = original;
  }
}

}  // namespace detent::pipeline
