// Operators as the products and sums that they are.
#pragma once

#include "graph/rewrites/rewrite.h"

namespace detent::graph {

/// An Einsum of two values of static shapes, of which one may be constant, becomes a MatMul of the same name with
/// Transpose and Reshape around it, where it is a product of matrices.
Notes einsums_to_matmuls(onnx::Model& model, const ValueTypes& types, const Store& store);

/// The same for an Einsum of any value with a constant whose axes are summed up or new: so exporters write the layers
/// of attention. Transpose and Reshape make the matrix of the constant, which stays as it is.
Notes einsums_with_weights(onnx::Model& model);

/// PRelu of float32 becomes relu(x) + slope * (x - relu(x)).
Notes part_prelus(onnx::Model& model, const ValueTypes& types);

}  // namespace detent::graph
