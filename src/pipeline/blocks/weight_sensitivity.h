// How much the rounding of weights changes a model's results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "data/sample.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "quantization/blocks/block_weights.h"
#include "run/context.h"

namespace detent::pipeline {

/// For each group of tensors of the placement the error of the worst output if they alone are rounded to the nearest,
/// in their formats: the sum of squared errors over that of squares, over the first `samples` samples. The caches of
/// decoders (outputs named "present…") do not count where there are other outputs.
///
/// The model runs once for each sample and group; results do not depend on threads. Throws what the runtime and the
/// samples throw.
std::vector<double> output_errors(const run::Context& context, const onnx::Model& model, const graph::ValueTypes& types,
                                  const quantization::BlockPlacement& placement,
                                  std::span<const std::vector<std::size_t>> groups, data::SampleSource& source,
                                  std::size_t samples);

/// What that takes beside what is there: the runtime, the model in one piece, a copy of the weight that is rounded, and
/// its values on their way.
std::uint64_t memory_of_errors(const onnx::Model& model, const quantization::BlockPlacement& placement);

}  // namespace detent::pipeline
