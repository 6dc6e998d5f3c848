// Operators whose activations have 8 and 16 bits, for runtimes that want one width around each.
#pragma once

#include "graph/values.h"
#include "quantization/emit/emitted.h"

namespace detent::quantization {

/// Of each operator that reads or makes 16-bit integers, the activations of 8 bits get a pair of 16 bits besides:
/// between their DequantizeLinear and the operator, or between the operator and their QuantizeLinear. The 16 bits hold
/// what the 8 bits hold, without an error. A HardSigmoid works with 8 bits instead, and 16-bit values around it get a
/// pair of 8.
/// With `htp`, a LayerNormalization works with 16 bits also between 8, of which the HTP's is off by a step in a fifth
/// of its results. And a pair of int16 with the zero point 0 is given to what the HTP computes wrongly from uint16: the
/// second operand of a MatMul of two activations, of which it keeps about 8 bits, what a Mul reads of a Tanh, and what
/// a product with weights reads of a LayerNormalization of 16 rows.
void widen_operators(Emitted& emitted, const graph::ValueTypes& types, bool htp);

}  // namespace detent::quantization
