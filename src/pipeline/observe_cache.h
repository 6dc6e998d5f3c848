// One pass over the float model in which a decoder's cache is watched, within the budgets of the run.
#pragma once

#include <cstdint>

#include "data/sample.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "run/context.h"
#include "run/model/kv_cache.h"

namespace detent::pipeline {

/// Returns the number of samples. Where memory is short the model runs in segments, which changes nothing. Throws
/// resource where the budgets do not suffice.
std::uint64_t observe_cache(const onnx::Model& running, const graph::ValueTypes& types, const run::Context& context,
                            data::SampleSource& source, run::KvCacheRun& cache);

}  // namespace detent::pipeline
