// quantize() where nothing becomes integers: another floating-point type only.
#pragma once

#include "detent/quantize.h"

namespace detent::pipeline {

/// The options are valid, and their preset quantizes nothing.
QuantizeResult convert_floats(const QuantizeOptions& options);

}  // namespace detent::pipeline
