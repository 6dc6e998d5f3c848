// What the result of a run tells of the assignment.
#pragma once

#include <string>
#include <vector>

#include "detent/quantize.h"
#include "onnx/model.h"
#include "quantization/assignment.h"

namespace detent::run {

/// Counts nodes, in bodies as well, and records scale, zero point, range and method of each activation.
void record(const onnx::Model& model, const quantization::Assignment& assignment, QuantizeResult& result);

/// Notes that concern this machine only: the model is the same wherever it is made.
std::vector<std::string> notes_for_this_machine(const QuantConfig& config);

}  // namespace detent::run
