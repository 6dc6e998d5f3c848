// The QOperator form: operators on integers instead of float operators between Q/DQ pairs.
#pragma once

#include <cstddef>

#include "onnx/model.h"

namespace detent::quantization {

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
