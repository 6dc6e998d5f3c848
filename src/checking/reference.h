// What the integers of a quantized model are when they are computed exactly, as a model of float64 operators.
#pragma once

#include <string>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::checking {

struct Reference {
  onnx::Model model;
  /// Whether all that is computed in it is exact but for the rounding of float64; an average pool divides in float32.
  bool exact = true;
  std::string inexact_op;  // the first operator that is not: there is no float64 kernel for it
};

/// The same inputs and outputs. Integers are read as float64 without their scales, and products of integers are summed
/// up before they are scaled: matrix products in float64, whose sums are exact below 2^53; convolutions in float32, in
/// which the runtime has them, of operands that are cut into parts of so few bits that no sum exceeds 2^24. Scales are
/// applied in float64, to the sum with the bias where the bias counts in its steps, and a QuantizeLinear rounds half to
/// even in float64. Run it without optimizations.
Reference reference_of(const onnx::Model& model, const graph::ValueTypes& types);

}  // namespace detent::checking
