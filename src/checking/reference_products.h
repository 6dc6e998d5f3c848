// Private to checking/: operators that the runtime has no float64 kernels for, as others that it has.
#pragma once

#include "checking/reference_graph.h"

namespace detent::checking {

/// Adds a Conv, ConvTranspose, MatMul or Gemm of dequantized operands, summed up as integers; false: it is none.
bool add_product(ReferenceGraph& g, const onnx::Node& node);

/// Adds an average pool of a dequantized value, summed up as integers; false: it is none.
bool add_pool(ReferenceGraph& g, const onnx::Node& node);

/// Adds a HardSigmoid, HardSwish or LeakyRelu in float64; false: it is none.
bool add_piecewise(ReferenceGraph& g, const onnx::Node& node);

}  // namespace detent::checking
