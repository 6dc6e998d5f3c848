// The story of dynamic activations: float model in, integer weights and operators that quantize as they run out.
#pragma once

#include "detent/quantize.h"

namespace detent::pipeline {

/// What quantize() does with Activations::dynamic. Samples, if there are some, are for the figures at the end.
QuantizeResult quantize_dynamic(const QuantizeOptions& options);

}  // namespace detent::pipeline
