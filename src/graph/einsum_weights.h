// Einsums with a constant, as the products of matrices that they are.
#pragma once

#include "graph/rewrite.h"

namespace detent::graph {

/// An Einsum of a value of static shape and a constant becomes a MatMul of the same name, with Transpose and Reshape
/// around it.
Notes multiply_einsums(onnx::Model& model, const ValueTypes& types, const Store& store);

}  // namespace detent::graph
