// Operators whose activations have 8 and 16 bits, for runtimes that want one width around each.
#pragma once

#include "quantization/emit/emitted.h"

namespace detent::quantization {

/// Of each operator that reads or makes 16-bit integers, the activations of 8 bits get a pair of 16 bits besides:
/// between their DequantizeLinear and the operator, or between the operator and their QuantizeLinear. The 16 bits hold
/// what the 8 bits hold, without an error. A HardSigmoid works with 8 bits instead, and 16-bit values around it get a
/// pair of 8. With `centres`, the second operand of a MatMul of two activations of 16 bits gets a pair of int16 with
/// the zero point 0, since the HTP keeps about 8 bits of one in uint16, and so does what a Mul reads of a Tanh.
void widen_operators(Emitted& emitted, bool centres);

}  // namespace detent::quantization
