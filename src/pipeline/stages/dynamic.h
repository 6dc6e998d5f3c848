// Integers whose activations get their scales while the model runs.
#pragma once

#include "pipeline/run.h"

namespace detent::pipeline {

/// Run::model with integer weights, and operators that find the scales of what they read.
void emit_dynamic(Run& run);

}  // namespace detent::pipeline
