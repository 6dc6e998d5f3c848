// The stages of a decoder whose cache of keys and values has fewer bits, and nothing else.
#pragma once

#include "pipeline/run.h"
#include "run/model/kv_cache.h"

namespace detent::pipeline {

struct CacheWork {
  run::KvCacheRun cache;
};

/// Watches keys and values of all samples, as the model makes them in float32.
void observe_cache(Run& run);
/// Puts the scales into Run::model.
void emit_cache(Run& run);

}  // namespace detent::pipeline
