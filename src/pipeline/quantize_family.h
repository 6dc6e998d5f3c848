// Several results of one model from one pass over the samples, in a folder.
#pragma once

#include "detent/quantize.h"

namespace detent::pipeline {

/// What quantize() does where QuantizeOptions::family names members.
QuantizeResult quantize_family(const QuantizeOptions& options);

}  // namespace detent::pipeline
