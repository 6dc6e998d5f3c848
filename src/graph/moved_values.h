// Where values go that nothing computes with.
#pragma once

#include <cstddef>
#include <set>
#include <string>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::graph {

/// Nodes that only move what a value holds.
struct Moved {
  std::set<std::size_t> nodes;
  bool parts = false;  // behind them, or at once, the value leaves the graph or is taken apart
};
Moved moved_from(const onnx::Model& model, const Index& index, const std::string& value);

}  // namespace detent::graph
