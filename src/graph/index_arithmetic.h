// What computes shapes, positions and indices, and not values.
#pragma once

#include <vector>

#include "graph/index.h"
#include "graph/values.h"
#include "onnx/model.h"

namespace detent::graph {

/// A flag for each node. Products, and nodes with bodies, are never among them.
struct IndexArithmetic {
  std::vector<bool> from_shapes;   // what it makes follows from the shapes of the inputs, not from what they hold
  std::vector<bool> into_indices;  // what it makes ends in sizes, indices and other integers only
};

/// The nodes must be in topological order.
IndexArithmetic index_arithmetic(const onnx::Model& model, const Index& index, const ValueTypes& types);

}  // namespace detent::graph
