// Arithmetic and data traffic of nodes, counted from shapes.
#pragma once

#include <cstdint>
#include <optional>

#include "graph/index.h"
#include "graph/values.h"
#include "onnx/model.h"

namespace detent::graph {

/// What one run of a node takes at the least.
struct Work {
  std::uint64_t macs = 0;   // multiply-accumulates of products and convolutions
  std::uint64_t flops = 0;  // 2 per MAC; of all else one per element: see work_of()
  std::uint64_t bytes = 0;  // all inputs read and all outputs written once

  Work& operator+=(const Work& other) noexcept;
};

/// nullopt when a shape that it takes is not static. Counting rules:
///   Conv, ConvTranspose, Gemm, MatMul, LSTM, GRU, RNN   2 per MAC, and 1 per output element where there is a bias
///   pooling                                            1 per window element and output element
///   reductions, Softmax, normalizations                1 per input element (so often more in truth)
///   data movement                                      0; of Reshape and the like no bytes either
///   all else                                           1 per output element
std::optional<Work> work_of(const onnx::Model& model, const Index& index, const ValueTypes& types,
                            const onnx::Node& node);

}  // namespace detent::graph
