// The story of weights alone: float model in, weights in blocks out, samples optional.
#pragma once

#include "detent/quantize.h"

namespace detent::pipeline {

/// What quantize() does where WeightsOnlyConfig::enabled.
QuantizeResult quantize_weights(const QuantizeOptions& options);

}  // namespace detent::pipeline
