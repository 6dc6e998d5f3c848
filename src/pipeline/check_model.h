// check() of a model in memory, and what a run says of it.
#pragma once

#include <string>
#include <vector>

#include "detent/check.h"
#include "detent/config.h"
#include "exec/session.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "quantization/placement.h"

namespace detent::pipeline {

/// The target is a name that is known; nodes are in topological order.
CheckResult check_model(const std::string& target, const onnx::Model& model, const graph::ValueTypes& types);

/// What the target makes of a quantized model, in lines: how many nodes it runs, and which fall back or are refused.
/// Nothing where the target is ONNX Runtime on a CPU, which runs every model.
std::vector<std::string> told_of_target(const QuantConfig& config, const onnx::Model& quantized,
                                        const exec::Runtime& runtime);

/// The same before anything is calibrated: of the pairs as placed, with made-up scales.
std::vector<std::string> told_of_target(const QuantConfig& config, const onnx::Model& model,
                                        const quantization::Placement& placement, const exec::Runtime& runtime);

}  // namespace detent::pipeline
