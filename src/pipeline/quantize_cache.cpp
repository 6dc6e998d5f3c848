#include "pipeline/quantize_cache.h"

#include <optional>

#include "config/derived.h"
#include "exec/session.h"
#include "graph/rewrite.h"
#include "graph/transformer.h"
#include "pipeline/deployed.h"
#include "pipeline/observe_cache.h"
#include "profile/profiler.h"
#include "run/content_order.h"
#include "run/kv_cache.h"
#include "run/outputs.h"
#include "run/prepare.h"
#include "run/samples.h"
#include "run/single_run.h"

namespace detent::pipeline {
namespace {

using profile::Step;

class CacheRun : run::SingleRun {
 public:
  explicit CacheRun(const QuantizeOptions& options) : SingleRun(options) {}

  QuantizeResult run() {
    pre_process();
    observe();
    write();
    run_models();
    return finish();
  }

 private:
  void pre_process() {
    const auto scope = profiler_.scope(Step::pre_process);
    model_ = open();
    graph::unfold(model_, {options_.resources.memory_budget, options_.stop});
    append(graph::lift_constants(model_));
    append(graph::drop_initializer_inputs(model_));
    graph::sort_topologically(model_);
    result_.transformer = graph::find_transformer(model_, graph::ValueTypes());
  }

  // Keys and values of all samples, as the model makes them in float32.
  void observe() {
    const auto scope = profiler_.scope(Step::calibration);
    auto running = model_;
    graph::raise_floats(running, run::file_store(work_->scratch(), "float"), true);
    cache_.emplace(model_, running, options_.kv_cache);
    const auto given =
        run::open_samples(options_.calibration_data.value_or(""), options_.samples, run::input_specs(model_),
                          {.max_samples = options_.max_samples,
                           .batch_size = options_.batch_size,
                           .file_memory = run::memory_for_samples(options_.resources)});
    run::ContentOrderedSamples source(*given, {});
    const run::Context context{runtime_,         options_.resources, work_->scratch(),
                               options_.threads, options_.progress,  options_.stop};
    result_.samples = observe_cache(running, exec::probe_values(runtime_, running), context, source, *cache_);
    append(source.notes());
  }

  void write() {
    const auto scope = profiler_.scope(Step::post_process);
    auto written = model_;
    cache_->apply(written, result_);
    SingleRun::write(written, run::reason_against_running(options_.kv_cache.type, runtime_.version()));
  }

  void run_models() {
    if (auto reason = reason_against_running_cache(options_, options_.output, runtime_); !reason.empty())
      return append({std::move(reason)});
    if (options_.bench) time_models(options_, run::input_specs(model_), runtime_, profiler_, result_);
    report_.comparison = compare_models(options_, work_->path(), profiler_, result_);
  }

  onnx::Model model_;
  std::optional<run::KvCacheRun> cache_;
};

}  // namespace

QuantizeResult quantize_cache(const QuantizeOptions& options) { return CacheRun(options).run(); }

}  // namespace detent::pipeline
