#include "pipeline/observe_cache.h"

#include "base/parallel.h"
#include "planning/calibration.h"
#include "quantization/placement/placement.h"
#include "run/model/prepare.h"
#include "run/sweep_setup.h"
#include "solve/sweep/gram_sweep.h"

namespace detent::pipeline {

std::uint64_t observe_cache(const onnx::Model& running, const graph::ValueTypes& types, const run::Context& context,
                            data::SampleSource& source, run::KvCacheRun& cache) {
  quantization::Placement placement;
  for (const auto& value : cache.values()) placement.marks.emplace_back().value = value;
  const planning::Circumstances circumstances{cache.values().size(), false, thread_count(context.threads), 1, 0};
  const run::Prepared prepared{running, types, {}};
  const auto sweep = run::set_up_sweep(context, prepared, placement, source, circumstances);
  return solve::sweep_values(running, types, context.runtime, source, sweep.cuts,
                             {.threads = context.threads,
                              .spool = sweep.spool.get(),
                              .progress = context.progress,
                              .stop = context.stop,
                              .listened = cache.values(),
                              .listener = &cache.observer()});
}

}  // namespace detent::pipeline
