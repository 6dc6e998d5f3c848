// What options ask for, as far as several of them decide it together.
#pragma once

#include "config/option.h"
#include "detent/quantize.h"

namespace detent::config {

/// Samples in files or from a stream.
bool has_samples(const QuantizeOptions& options);

/// Whether nothing becomes of the model but another type of its cache.
bool changes_cache_alone(const QuantizeOptions& options);

/// Whether the format of each node is searched, for a latency or for a size of more than weights alone.
bool searches_formats(const QuantizeOptions& options);

/// What a run makes of these options, which name one result (no family).
Result result_of(const QuantizeOptions& options);

/// Whether operators that are faster in float stay so. Only where this machine may be the target: formats of 4 and 16
/// bits and power-of-two scales are for others, and what the user names is quantized as named.
bool chooses_by_speed(const QuantizeOptions& options);

/// Whether what is not quantized, and the scales of what is, become floats of 16 bits.
bool writes_16_bits(const QuantConfig& config);

/// Whether nodes are added that keep ONNX Runtime from fusing across the borders of float parts.
bool makes_barriers(const QuantConfig& config);

/// Whether gates may be written as HardSigmoid, which ONNX Runtime's CPU runs fast on integers.
bool writes_hard_sigmoids(const QuantConfig& config);

/// Whether LSTM layers that nobody named are tried on integers: where that is measured, and for ONNX Runtime's CPU
/// alone.
bool tries_recurrent(const QuantConfig& config);

/// Whether the format leaves room for weights of 8 bits under products that compute in float: for ONNX Runtime's CPU,
/// which makes floats of them when it loads the model.
bool stores_weights(const QuantConfig& config);

/// Whether the error of each rounding is measured, as long as there are samples.
bool may_measure_accuracy(const QuantizeOptions& options);

/// Whether what was measured is acted on.
bool applies_remedies(const QuantizeOptions& options);

/// Whether weights as of stores_weights() are tried, and kept where that is measured to do no harm.
bool tries_stored_weights(const QuantizeOptions& options);

/// Whether WeightSolver::automatic may lead to gptq: accuracy is measured and acted on, and the samples can be read
/// again.
bool may_tune(const QuantizeOptions& options);

}  // namespace detent::config
