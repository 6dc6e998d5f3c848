// The plan of results other than integers with scales from samples: weights in blocks, 16-bit floats, dynamic scales,
// floats with common exponents.
#pragma once

#include "detent/plan.h"

namespace detent::pipeline {

/// Whether the options make one of these.
bool is_of_format(const QuantizeOptions& options);

/// What quantize() would do of valid options that is_of_format() holds for, as far as the file alone decides it. Memory
/// is told where it follows from the sizes of both files.
Plan plan_of_format(const QuantizeOptions& options);

}  // namespace detent::pipeline
