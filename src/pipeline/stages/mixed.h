// Several formats in one model.
#pragma once

#include "pipeline/run.h"

namespace detent::pipeline {

/// Makes Run::model of Run::prepared where QuantizeOptions::node_formats is not empty: by runs of single formats, one
/// after the other, each for its nodes of what the one before wrote: weights in blocks, dynamic activations, static
/// ones. A run that is resumed starts again.
void mix_formats(Run& run);

}  // namespace detent::pipeline
