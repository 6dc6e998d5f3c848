// quantize() for a latency or a size: the format of each node is searched, then that model is made.
#pragma once

#include "detent/quantize.h"

namespace detent::pipeline {

/// Of options that config::searches_formats(). Throws resource, naming the nearest model, where none meets the limits.
QuantizeResult quantize_within_limits(const QuantizeOptions& options);

}  // namespace detent::pipeline
