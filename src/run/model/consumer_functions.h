// What becomes of each quantized activation behind it: x * sigmoid(x), a Clip, a decomposed HardSwish or GELU.
#pragma once

#include <map>
#include <string>

#include "calibration/response.h"
#include "exec/session.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "quantization/placement/placement.h"

namespace detent::run {

/// For each marked float activation that is read by element-wise operators only, which make one value of it and of
/// scalar constants: that value as a function of it, computed by the runtime. The others are left out, and so are those
/// that share their scale with another value.
std::map<std::string, calibration::Response> consumer_functions(const onnx::Model& model,
                                                                const graph::ValueTypes& types,
                                                                const quantization::Placement& placement,
                                                                const exec::Runtime& runtime);

}  // namespace detent::run
