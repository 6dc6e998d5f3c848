// From statistics to what calibration proposes.
#pragma once

#include <map>
#include <string>

#include "base/numbers.h"
#include "calibration/methods.h"
#include "calibration/statistics.h"
#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/assignment.h"
#include "quantization/placement/placement.h"
#include "run/model/prepare.h"

namespace detent::run {

/// How ranges are found, as the options say it.
quantization::RangeOptions range_options(const QuantizeOptions& options);

/// Statistics from QuantizeOptions::statistics. Throws bad_input unless they are of this model and, where `source` is
/// not null, of its samples.
calibration::Statistics saved_statistics(const QuantizeOptions& options, const Fingerprint& model,
                                         data::SampleSource* source);

/// Ranges by the method asked for, and those that remedies may try instead. Extremes of weights are left empty. Throws
/// what find_ranges() throws.
quantization::Proposals propose(const Prepared& prepared, const quantization::Placement& placement,
                                const calibration::Statistics& statistics, const QuantizeOptions& options,
                                const exec::Runtime& runtime);

// What becomes of each quantized activation behind it: x * sigmoid(x), a Clip, a decomposed HardSwish or GELU.

/// For each marked float activation that is read by element-wise operators only, which make one value of it and of
/// scalar constants: that value as a function of it, computed by the runtime. The others are left out, and so are those
/// that share their scale with another value.
std::map<std::string, calibration::Response> consumer_functions(const onnx::Model& model,
                                                                const graph::ValueTypes& types,
                                                                const quantization::Placement& placement,
                                                                const exec::Runtime& runtime);

}  // namespace detent::run
