// Power-of-two scales of constants where the target has them as AMD Quark does.
#pragma once

#include "detent/config.h"
#include "onnx/tensor.h"
#include "quantization/assignment.h"

namespace detent::quantization {

/// Of twice, once, half, a quarter and an eighth of its scale a constant with one scale gets that with the least
/// squared error, of equal ones the largest; only where the target wants the nearest powers of two.
void search_power_of_two(const onnx::Tensor& constant, const Mark& mark, const QuantConfig& config,
                         ValueAssignment& assignment);

}  // namespace detent::quantization
