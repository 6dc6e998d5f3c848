// The runtime multiplies a single row by other code than several, which rounds otherwise: the same sample would then
// give other activations alone than in a batch.
#pragma once

#include "graph/values.h"
#include "onnx/model.h"

namespace detent::exec {

/// Rewrites each product of matrices (Gemm; MatMul of two matrices, or of something of unknown rank with a matrix)
/// whose first factor may have a single row as -((-1) * A * B - C). Negation is exact, and the single-row code is only
/// used for a factor of 1. Names of values stay.
void make_batch_invariant(onnx::Model& model, const graph::ValueTypes& types);

}  // namespace detent::exec
