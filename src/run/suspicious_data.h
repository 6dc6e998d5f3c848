// Samples that are hardly what the model will see.
#pragma once

#include <string>
#include <vector>

#include "calibration/statistics.h"
#include "onnx/model.h"

namespace detent::run {

/// A note for each: samples that repeat others, inputs that hold one value only, and inputs of another scale than the
/// weights and biases of the convolutions that read them were made for. Throws bad_input where no value was seen.
std::vector<std::string> suspicions(const onnx::Model& model, const calibration::Statistics& statistics);

}  // namespace detent::run
