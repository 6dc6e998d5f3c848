// Weights that nodes make of constants, as exporters leave them: behind Identity, Cast, Reshape, products with a
// number.
#pragma once

#include <cstdint>
#include <functional>

#include "detent/config.h"
#include "exec/session.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"

namespace detent::pipeline {

struct ComputedWeights {
  /// Called where there is something to compute; null: there is no runtime.
  std::function<const exec::Runtime*()> runtime;
  std::uint64_t most_bytes = 0;  // that the results may have
};

/// They become constants, as far as they are then stored in blocks: others stay as they are, so that the file does not
/// grow. Transposes of constants stay too, since blocks are made of what they read.
graph::Notes fold_computed_weights(onnx::Model& model, const QuantConfig& config, const WeightsOnlyConfig& blocks,
                                   const ComputedWeights& how);

}  // namespace detent::pipeline
