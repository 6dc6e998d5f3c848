// Arithmetic of shapes, positions and indices that exporters do in floats.
#pragma once

#include <vector>

#include "graph/index.h"
#include "graph/values.h"
#include "onnx/model.h"

namespace detent::graph {

/// Of each node: whether what it makes, which comes from no product, only goes into integers, truth values and factors
/// of sizes in the end.
std::vector<bool> makes_positions(const onnx::Model& model, const ValueTypes& types, const Index& index);

}  // namespace detent::graph
