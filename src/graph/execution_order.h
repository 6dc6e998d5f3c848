// The order in which ONNX Runtime runs the nodes of a graph.
#pragma once

#include <vector>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::graph {

/// Positions of all nodes in the runtime's default order. It is not that of the file: the runtime walks backwards,
/// depth first, from the nodes that nobody reads, the later producer of two first, and runs each node as soon as its
/// producers are done. What is alive at a time follows from it. `index` is of `model`.
std::vector<int> execution_order(const onnx::Model& model, const Index& index);

}  // namespace detent::graph
