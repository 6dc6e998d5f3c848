#include "pipeline/run.h"

#include <utility>

#include "config/formats.h"
#include "config/presets.h"
#include "config/validate.h"
#include "pipeline/stages/blocks.h"
#include "pipeline/stages/floats.h"
#include "pipeline/stages/integers.h"
#include "run/comparison/proof.h"
#include "run/model/finish.h"
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

namespace {

// A model of 16-bit floats gets scales of their type.
std::optional<run::KeptFloats> kept_floats(const QuantizeOptions& options) {
  if (config::result_of(options) != config::kIntegers) return std::nullopt;
  const exec::Runtime runtime(options.runtime, options.resources.sample_time_limit);
  return run::kept_floats(onnx::read_model(options.model), options.config, runtime,
                          {options.resources.memory_budget, options.stop});
}

}  // namespace

Recipe recipe_of_options(const QuantizeOptions& options) {
  Recipe recipe{.options = options, .result = config::result_of(options)};
  if (recipe.result == config::kMixed) {
    recipe.options.config.formats_given = true;
    recipe.options.optimize_for = OptimizeFor::size;
  }
  recipe.target = &config::target(options.config);
  recipe.has_samples = config::has_samples(options);
  recipe.reports = options.report || options.trace;
  recipe.lowers_rest =
      (recipe.result & (config::kIntegers | config::kBlocks)) != 0 && config::writes_16_bits(options.config);
  return recipe;
}

Recipe recipe_of(const QuantizeOptions& options, config::Command command) {
  auto kept = kept_floats(options);
  if (!kept) return recipe_of_options(options);
  auto own = options;
  own.config.float_type = kept->type;
  config::validate(own, command);
  auto recipe = recipe_of_options(own);
  recipe.in_float32 = std::move(kept->in_float32);
  recipe.notes.emplace_back(
      "the model computes in 16-bit floats where it is not quantized; --float 32 gives a model that the runtime's "
      "CPU computes on integers");
  return recipe;
}

}  // namespace detent::pipeline
