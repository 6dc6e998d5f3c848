// Matrix products that ONNX Runtime would compute in float although they read integers.
#pragma once

#include "graph/values.h"
#include "quantization/emit/emitted.h"

namespace detent::quantization {

/// A Relu behind a product of integers whose result other nodes read in float becomes a Max with 0, and a Clip gets a
/// Max with one input before it. The runtime would take the Relu or Clip for a part of the product, for which it then
/// has no kernel on integers, and would dequantize the weight in each run. For the same reason a Max with one input
/// comes between a MatMul and an Add of which it would make a Gemm: that of two axes with a value that is no constant,
/// and that of more axes, of known sizes, with a vector. `types` are those of the float model.
void keep_integer_products(Emitted& emitted, const graph::ValueTypes& types);

}  // namespace detent::quantization
