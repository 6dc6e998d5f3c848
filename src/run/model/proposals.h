// From statistics to what calibration proposes.
#pragma once

#include "base/fingerprint.h"
#include "calibration/statistics.h"
#include "data/sample.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "quantization/assignment.h"
#include "quantization/ranges.h"
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

}  // namespace detent::run
