// Matrix products that ONNX Runtime would compute in float although they read integers.
#pragma once

#include "quantization/emit/emitted.h"

namespace detent::quantization {

/// A Relu behind a product of integers whose result other nodes read in float becomes a Max with 0, and a Clip gets a
/// Max with one input before it. The runtime would take the Relu or Clip for a part of the product, for which it then
/// has no kernel on integers, and would dequantize the weight in each run.
void keep_integer_products(Emitted& emitted);

}  // namespace detent::quantization
