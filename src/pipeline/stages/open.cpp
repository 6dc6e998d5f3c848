#include "pipeline/stages/open.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "config/identity.h"
#include "graph/rewrites/einsum_weights.h"
#include "graph/rewrites/fixed_shapes.h"
#include "graph/rewrites/rewrite.h"
#include "graph/transformer.h"
#include "onnx/write.h"
#include "pipeline/deployed.h"
#include "pipeline/stages/integers.h"
#include "quantization/ranges.h"
#include "run/files/model_fingerprint.h"
#include "run/files/outputs.h"
#include "run/model/proposals.h"
#include "shim/shared_work.h"
#include "store/open_device.h"

namespace detent::pipeline {
namespace {

constexpr std::int64_t kOpsetOfDynamicQuantizeLinear = 11;

// Of what a later process may take over: statistics of integers, integers of blocks.
nlohmann::json resume_identity_of(const Run& run) {
  const auto& options = run.options;
  auto chosen = config::run_identity(options);
  if (run.recipe.result == config::kBlocks) {
    chosen = config::identity(options, config::Affects::statistics);
    chosen.update(config::identity(options, config::Affects::integers));
  }
  const bool calibrates = (run.recipe.result & (config::kIntegers | config::kMixed)) != 0;
  return run::run_identity({.model = run.model,
                            .output = options.output,
                            .calibration_data = options.calibration_data,
                            .options = chosen,
                            .histograms = calibrates && needs_histograms(run.recipe),
                            .votes = calibrates && needs_votes(run.recipe)});
}

void make_directory(Run& run) {
  run.work.emplace(run.options.resources, resume_identity_of(run));
  run.profiler.watch_directory(run.work->path());
  run.note(run.work->notes());
}

}  // namespace

bool needs_histograms(const Recipe& recipe) {
  return recipe.reports || quantization::needs_histograms(run::range_options(recipe.options));
}

bool needs_votes(const Recipe& recipe) {
  return quantization::needs_votes(recipe.options.config, run::range_options(recipe.options));
}

void read_model(Run& run) {
  const auto& options = run.options;
  run.model = onnx::read_model(options.model);
  run.profiler.checkpoint(profile::Step::model_loaded);
  run.note(run.recipe.notes);
  run.result.model_bytes_before = run::size_on_disk(run.model);
  if (options.statistics) run.fingerprint = run::fingerprint_of(run.model);
}

void claim_output(Run& run) {
  const auto& options = run.options;
  run::check_outputs(options, run.model);
  if (options.prepared_output) run::check_output(*options.prepared_output, run.model);
  // Weights in blocks are found from their own values where there are no samples: nothing has to be kept, unless
  // several processes exchange it.
  if (run.recipe.result == config::kBlocks) {
    if (run.recipe.has_samples || run.recipe.lowers_rest || shim::size_of(options.resources.ranks) > 1)
      make_directory(run);
    return;
  }
  make_directory(run);
  run.load_runtime();
  if (options.device.gds == GdsMode::on && tunes(options.finetune.rounding))
    store::open_cuda_storage(options.device.cuda.front(), GdsMode::on, run.work->path());
}

void canonicalize(Run& run) {
  auto& model = run.model;
  if (const auto& reason = run.options.config.target_reason; !reason.empty()) run.result.notes.push_back(reason);
  graph::unfold(model, run.limits());
  run.note(graph::lift_constants(model));
  run.note(graph::drop_initializer_inputs(model));
  graph::sort_topologically(model);
  if (const auto& shapes = run.options.config.input_shapes; !shapes.empty())
    run.note(graph::fix_input_shapes(model, shapes));
  // Blocks are made of the model as it is; preparing it for other formats does the same.
  if (run.recipe.result == config::kBlocks) {
    run.note(graph::einsums_with_weights(model));
    run.note(graph::plain_gemms(model, [](auto bytes) { return onnx::TensorData::owned(std::move(bytes)); }));
  }
  if (is_timed(run.recipe)) run.timed_inputs = inputs_to_time(model, run.result);
}

void prepare(Run& run) {
  const auto& options = run.options;
  run.result.transformer = graph::find_transformer(run.model, run.limits());
  run.prepared =
      run::prepare(std::move(run.model), options.config, *run.runtime, run.work->scratch(), run.profiler, run.limits());
  if (run.shared.original.empty()) run.note(run.prepared.notes);
  auto& model = run.prepared.model;
  if ((run.recipe.result & (config::kDynamic | config::kMixed)) != 0 && model.opset() < kOpsetOfDynamicQuantizeLinear)
    run.note(graph::upgrade_opset(model, run.prepared.types));
  if (is_timed(run.recipe)) run.timed_inputs = inputs_to_time(model, run.result);
}

void check_samples(Run& run) { check_samples(run.options); }

void write_prepared(Run& run) {
  const auto& file = run.options.prepared_output;
  const auto& prepared = run.integers ? run.integers->draft.prepared : run.prepared;
  run::check_output(*file, prepared.model);
  onnx::write_model(prepared.model, *file, {run.options.external_data_threshold});
}

}  // namespace detent::pipeline
