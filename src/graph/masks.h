// What is added to attention scores before a Softmax so that it gives 0: -10000, -1e9, the lowest float, -infinity.
#pragma once

#include <string>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::graph {

/// Values that only a Softmax reads, at once or by way of sums, choices (Where) and what moves or scales values; each
/// after those that read it.
std::vector<std::string> attention_scores(const onnx::Model& model, const Index& index);

/// A mask at or below this gives 0 behind a Softmax, with any scores that a model makes.
inline constexpr float kMask = -1e4F;

}  // namespace detent::graph
