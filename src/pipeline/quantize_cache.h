// The story of a decoder's cache alone: the model stays as it is but for the type of past and present keys and values.
#pragma once

#include "detent/quantize.h"

namespace detent::pipeline {

/// What quantize() does under the preset `none` where KvCacheConfig asks for a type and nothing else is changed.
QuantizeResult quantize_cache(const QuantizeOptions& options);

}  // namespace detent::pipeline
