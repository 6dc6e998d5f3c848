// Where the blocks of each weight come from when a model is written.
#pragma once

#include <cstddef>
#include <vector>

#include "detent/quantize.h"
#include "quantization/block_stream.h"
#include "quantization/block_weights.h"
#include "tuning/block_weights.h"

namespace detent::pipeline {

/// Streams of the placement's weights, in its order: of the solutions where there are some; else blocks are found while
/// they are written. What is given must outlive them. They throw interrupted.
std::vector<quantization::BlockStream> block_streams(const onnx::Model& model,
                                                     const quantization::BlockPlacement& placement,
                                                     const tuning::SolvedBlocks& solved, const QuantizeOptions& options,
                                                     std::size_t threads);

/// The scale of a whole weight, where its blocks' scales are float8e4m3fn.
void find_common_scales(const onnx::Model& model, quantization::BlockPlacement& placement);

}  // namespace detent::pipeline
