// Operators on integers that runtimes lack or compute otherwise, written in the forms that they compute well.
#pragma once

#include <cstddef>

#include "graph/index.h"
#include "quantization/emit/barriers.h"

namespace detent::quantization {

// HardSigmoid on integers, for which ONNX Runtime has no kernel.

/// HardSigmoid between integers becomes a sum that saturates: of alpha * x + beta, cut to 0…1 by the integers of its
/// result, only x + beta / alpha is computed, quantized with a scale 1 / alpha times as large as the one that its
/// readers take the same integers with.
void emit_hard_sigmoids(Emitted& emitted);

// Matrix products that ONNX Runtime would compute in float although they read integers.

/// A Relu behind a product of integers whose result other nodes read in float becomes a Max with 0, and a Clip gets a
/// Max with one input before it. The runtime would take the Relu or Clip for a part of the product, for which it then
/// has no kernel on integers, and would dequantize the weight in each run. For the same reason a Max with one input
/// comes between a MatMul and an Add of which it would make a Gemm: that of two axes with a value that is no constant,
/// and that of more axes, of known sizes, with a vector. `types` are those of the float model.
void keep_integer_products(Emitted& emitted, const graph::ValueTypes& types);

/// Of each operator that reads or makes 16-bit integers, the activations of 8 bits get a pair of 16 bits besides:
/// between their DequantizeLinear and the operator, or between the operator and their QuantizeLinear. The 16 bits hold
/// what the 8 bits hold, without an error. A HardSigmoid works with 8 bits instead, and 16-bit values around it get a
/// pair of 8.
/// With `htp`, a LayerNormalization works with 16 bits also between 8, of which the HTP's is off by a step in a fifth
/// of its results. And a pair of int16 with the zero point 0 is given to what the HTP computes wrongly from uint16: the
/// second operand of a MatMul of two activations, of which it keeps about 8 bits, what a Mul reads of a Tanh, and what
/// a product with weights reads of a LayerNormalization of 16 rows.
void widen_operators(Emitted& emitted, const graph::ValueTypes& types, bool htp);

// The QOperator form: operators on integers instead of float operators between Q/DQ pairs.

struct QOperators {
  std::size_t nodes = 0;  // that compute on integers themselves
  std::size_t left = 0;   // that stay between pairs: no such operator, 16 bits, or float readers of the result
};

/// The last rewrite of a Q/DQ model. A node that reads integers of 8 bits through DequantizeLinear, and whose results
/// go to QuantizeLinear and nowhere else, becomes the operator that ONNX Runtime would run for it: QLinearConv and
/// QLinearMatMul of ONNX; QGemm, QLinearAdd, -Mul, -Sigmoid, -LeakyRelu, -Softmax, -Concat, -Where, -AveragePool and
/// -GlobalAveragePool of com.microsoft. One that moves values and keeps their scale takes the integers as they are.
QOperators to_qoperators(onnx::Model& model);

}  // namespace detent::quantization
