// What QuantizeOptions say, checked and told apart.
#pragma once

#include <string>
#include <vector>

#include "calibrate/statistics.h"
#include "detent/quantize.h"
#include "quantize/ranges.h"

namespace detent::pipeline {

/// Throws usage for options that make no sense or contradict each other, before anything is read.
void check_options(const QuantizeOptions& options);

/// Samples in files or from a stream.
bool has_samples(const QuantizeOptions& options);

/// Whether what rounding does to the results is measured, as long as there are samples.
bool may_measure_accuracy(const QuantizeOptions& options);

/// Whether Rounding::automatic leaves room for gptq: accuracy is measured and acted on, and the samples can be read
/// again.
bool may_tune(const QuantizeOptions& options);

quantization::RangeOptions range_options(const QuantizeOptions& options);

/// AccuracyConfig::other_methods that these statistics suffice for.
std::vector<CalibrationMethod> other_methods(const QuantizeOptions& options, const calibration::Statistics& statistics);

/// All that the integers of a tuned layer depend on, beside model and samples; empty without fine-tuning.
std::string tuning_identity(const QuantizeOptions& options);

}  // namespace detent::pipeline
