#include "pipeline/block_streams.h"

#include <utility>

#include "base/error.h"
#include "quantization/block_search.h"
#include "quantization/element_blocks.h"

namespace detent::pipeline {
namespace {

quantization::BlockSolver solver_of(const quantization::BlockPlacement& placement, const tuning::SolvedBlocks& solved,
                                    const QuantizeOptions& options, std::size_t t) {
  const auto& tensor = placement.tensors[t];
  if (t < solved.tensors.size() && solved.tensors[t])
    return quantization::scaled(solved.tensors[t]->solver(), tensor.column_factors);
  const bool nearest = options.weights_only.method == WeightMethod::nearest;
  return [&options, rows = tensor.rows, format = tensor.format, type = tensor.type, nearest](
             std::span<const float> columns, std::int64_t) {
    if (options.stop.stop_requested()) throw interrupted();
    if (!format.is_plain()) return quantization::element_blocks(columns, rows, format, !nearest);
    auto found = nearest ? quantization::nearest(columns, rows, format) : quantization::search(columns, rows, format);
    quantization::round_scales(found, columns, type, 0);
    return found;
  };
}

}  // namespace

std::vector<quantization::BlockStream> block_streams(const onnx::Model& model,
                                                     const quantization::BlockPlacement& placement,
                                                     const tuning::SolvedBlocks& solved, const QuantizeOptions& options,
                                                     std::size_t threads) {
  std::vector<quantization::BlockStream> all;
  for (std::size_t t = 0; t < placement.tensors.size(); ++t) {
    const auto& tensor = placement.tensors[t];
    all.emplace_back(model.graph.initializers[tensor.initializer], tensor, solver_of(placement, solved, options, t),
                     threads);
  }
  return all;
}

void find_common_scales(const onnx::Model& model, quantization::BlockPlacement& placement) {
  for (auto& tensor : placement.tensors) {
    if (tensor.format.scales != ScaleType::float8e4m3fn) continue;
    const float largest = quantization::largest_value(model.graph.initializers[tensor.initializer], tensor);
    tensor.format.common_scale = quantization::common_scale(largest, tensor.format);
  }
}

}  // namespace detent::pipeline
