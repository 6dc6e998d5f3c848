#include "pipeline/recipe.h"

#include <utility>

#include "config/derived.h"
#include "config/validate.h"
#include "exec/session.h"
#include "onnx/model.h"
#include "run/low_floats.h"

namespace detent::pipeline {
namespace {

// A model of 16-bit floats gets scales of their type.
void keep_floats(Recipe& recipe) {
  auto& options = recipe.options;
  const exec::Runtime runtime(options.runtime, options.resources.sample_time_limit);
  auto kept = run::kept_floats(onnx::read_model(options.model), options.config, runtime,
                               {options.resources.memory_budget, options.stop});
  if (!kept) return;
  options.config.float_type = kept->type;
  config::validate(options);
  recipe.in_float32 = std::move(kept->in_float32);
  recipe.notes.emplace_back(
      "the model computes in 16-bit floats, and so does what is not quantized; --float 32 gives a model whose "
      "products the runtime's CPU computes on integers");
}

}  // namespace

Recipe recipe_of(const QuantizeOptions& options) {
  Recipe recipe{.options = options, .result = config::result_of(options)};
  if (recipe.result == config::kIntegers) keep_floats(recipe);
  const auto& config = recipe.options.config;
  recipe.preset = &config::preset(config);
  recipe.target = &config::target(config);
  recipe.has_samples = config::has_samples(options);
  recipe.reports = options.report || options.trace;
  recipe.lowers_rest = (recipe.result & (config::kIntegers | config::kBlocks)) != 0 && config::writes_16_bits(config);
  return recipe;
}

}  // namespace detent::pipeline
