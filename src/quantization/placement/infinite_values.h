// Infinite values and NaN that models hold on purpose: masks of attention, rows of tables that nothing reads.
#pragma once

#include <set>
#include <string>

#include "onnx/model.h"

namespace detent::quantization {

/// Whether all values of a tensor of floats are finite; of other types they are.
bool all_finite(const onnx::Tensor& tensor);

/// Constants with such values that are added to others or chosen from, and what is made with them up to the next
/// operator that may end them, as Softmax does. No integers hold these.
std::set<std::string> infinite_values(const onnx::Model& model);

}  // namespace detent::quantization
