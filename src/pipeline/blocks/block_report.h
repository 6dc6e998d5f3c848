// What a run tells of a weight in blocks.
#pragma once

#include <cstddef>

#include "detent/quantize.h"
#include "onnx/model.h"
#include "quantization/blocks/block_stream.h"
#include "quantization/blocks/block_weights.h"
#include "solve/sweep/block_weights.h"

namespace detent::pipeline {

/// Of the tensor at this position of the placement. `solved` is empty where nothing was solved from samples.
BlockedWeight describe_weight(const onnx::Model& model, const quantization::BlockPlacement& placement,
                              const solve::SolvedBlocks& solved, std::size_t tensor,
                              const quantization::BlockErrors& errors, WeightMethod method);

}  // namespace detent::pipeline
