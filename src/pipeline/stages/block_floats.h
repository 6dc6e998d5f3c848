// Floats with common exponents, as AMD's NPUs read them.
#pragma once

#include "pipeline/run.h"

namespace detent::pipeline {

/// Run::model with operators that round activations and weights to the format.
void emit_block_floats(Run& run);

}  // namespace detent::pipeline
