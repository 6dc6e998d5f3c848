// quantize() to formats of neighbouring numbers that share an exponent (QuantConfig::block_float).
#pragma once

#include "detent/quantize.h"

namespace detent::pipeline {

/// The options are valid. Samples are not needed: scales are found while the model runs. If there are some, they tell
/// how close the results are to the float model's.
QuantizeResult convert_to_block_floats(const QuantizeOptions& options);

}  // namespace detent::pipeline
