// The story of static quantization, from file to file.
#pragma once

#include "detent/quantize.h"

namespace detent::pipeline {

/// quantize() to integers with scales from samples or statistics. The options are valid. A model of 16-bit floats keeps
/// them, and gets scales of their type, unless QuantConfig::float_type says otherwise.
QuantizeResult quantize_integers(const QuantizeOptions& options);

}  // namespace detent::pipeline
