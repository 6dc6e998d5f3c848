#include "pipeline/blocks/block_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace detent::pipeline {
namespace {

// Of AWQ, where the weight's inputs are scaled.
std::optional<double> exponent_of(const solve::SolvedBlocks& solved, std::size_t tensor) {
  for (const auto& [fold, scaling] : solved.scalings) {
    if (std::find(fold.tensors.begin(), fold.tensors.end(), tensor) != fold.tensors.end()) return scaling.exponent;
  }
  return std::nullopt;
}

}  // namespace

BlockedWeight describe_weight(const onnx::Model& model, const quantization::BlockPlacement& placement,
                              const solve::SolvedBlocks& solved, std::size_t tensor,
                              const quantization::BlockErrors& errors, WeightMethod method) {
  const auto& weight = placement.tensors[tensor];
  const auto first = !weight.products.empty() ? weight.products.front()
                     : !weight.tables.empty() ? weight.tables.front()
                                              : weight.others.front().first;
  const auto& reader = model.graph.nodes[first];
  BlockedWeight told{.name = model.graph.initializers[weight.initializer].name,
                     .node = reader.id(),
                     .op_type = reader.op_type(),
                     .bits = weight.format.bits,
                     .block_size = weight.format.block,
                     .rows = weight.rows,
                     .columns = weight.columns,
                     .method = method == WeightMethod::nearest ? "nearest" : "search",
                     .sqnr_db = errors.errors > 0 ? 10 * std::log10(errors.squares / errors.errors)
                                                  : std::numeric_limits<double>::infinity(),
                     .output_error = {},
                     .dense_error = {},
                     .input_exponent = {}};
  if (tensor >= solved.tensors.size() || !solved.tensors[tensor]) return told;
  const auto& verdict = solved.tensors[tensor]->verdict();
  told.method = verdict.method;
  told.output_error = verdict.output_error;
  told.dense_error = verdict.dense_error;
  told.input_exponent = exponent_of(solved, tensor);
  if (told.input_exponent && method == WeightMethod::awq) told.method = "awq";
  return told;
}

}  // namespace detent::pipeline
