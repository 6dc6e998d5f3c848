// quantize() where nothing becomes integers: another floating-point type only.
#pragma once

#include "calibration/statistics.h"
#include "detent/quantize.h"

namespace detent::pipeline {

/// The options are valid, and their preset quantizes nothing. `known` are the extremes of the model's values on the
/// samples; as long as no value is missing, these do not run again.
QuantizeResult convert_floats(const QuantizeOptions& options, const calibration::Statistics* known = nullptr);

}  // namespace detent::pipeline
