// Private to checking/: products and pools whose operands are integers.
#pragma once

#include "checking/reference_graph.h"

namespace detent::checking {

/// Adds a Conv, ConvTranspose, MatMul or Gemm of dequantized operands, summed up as integers; false: it is none.
bool add_product(ReferenceGraph& g, const onnx::Node& node);

/// Adds an average pool of a dequantized value, summed up as integers; false: it is none.
bool add_pool(ReferenceGraph& g, const onnx::Node& node);

}  // namespace detent::checking
