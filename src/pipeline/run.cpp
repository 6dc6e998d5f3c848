#include "pipeline/run.h"

#include <utility>

#include "pipeline/stages/blocks.h"
#include "pipeline/stages/cache.h"
#include "pipeline/stages/floats.h"
#include "pipeline/stages/integers.h"
#include "run/comparison/proof.h"
#include "run/samples/samples.h"
#include "shim/shared_work.h"

namespace detent::pipeline {

Run::Run(const Recipe& of, const SharedByRuns& with, run::RunProfiler& by)
    : recipe(of), options(of.options), shared(with), run_profiler(by), profiler(run_profiler.profiler()) {}

Run::~Run() = default;

std::unique_ptr<data::SampleSource> Run::open_samples(std::vector<data::InputSpec> inputs,
                                                      const shim::Ranks* ranks) const {
  return run::open_samples(options, std::move(inputs), static_cast<std::size_t>(shim::rank_of(ranks)),
                           static_cast<std::size_t>(shim::size_of(ranks)));
}

const exec::Runtime& Run::load_runtime() {
  if (!runtime) runtime.emplace(options.runtime, options.resources.sample_time_limit);
  return *runtime;
}

const exec::Runtime* Run::runtime_or_none() {
  if (!runtime) runtime = run::runtime_if_there(options);
  return runtime ? &*runtime : nullptr;
}

}  // namespace detent::pipeline
