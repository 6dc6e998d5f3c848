#include "pipeline/stages/cache.h"

#include "exec/session.h"
#include "graph/rewrites/rewrite.h"
#include "graph/transformer.h"
#include "pipeline/observe_cache.h"
#include "run/model/prepare.h"
#include "run/samples/content_order.h"
#include "run/samples/samples.h"

namespace detent::pipeline {

void observe_cache(Run& run) {
  run.result.transformer = graph::find_transformer(run.model, graph::ValueTypes());
  auto running = run.model;
  graph::half_floats_to_float32(running, run::file_store(run.work->scratch(), "float"), true);
  run.cache.reset(new CacheWork{{run.model, running, run.options.kv_cache}});
  const auto given = run.open_samples(run::input_specs(run.model));
  run::ContentOrderedSamples source(*given, {});
  run.result.samples = observe_cache(running, exec::infer_value_types(*run.runtime, running),
                                     run.context(run.work->scratch()), source, run.cache->cache);
  run.note(source.notes());
}

void emit_cache(Run& run) { run.cache->cache.apply(run.model, run.result); }

}  // namespace detent::pipeline
