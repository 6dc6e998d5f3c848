// How ranges are found, as QuantizeOptions say it.
#pragma once

#include <vector>

#include "calibrate/statistics.h"
#include "detent/quantize.h"
#include "quantize/ranges.h"

namespace detent::pipeline {

quantization::RangeOptions range_options(const QuantizeOptions& options);

/// AccuracyConfig::other_methods that these statistics suffice for.
std::vector<CalibrationMethod> other_methods(const QuantizeOptions& options, const calibration::Statistics& statistics);

}  // namespace detent::pipeline
