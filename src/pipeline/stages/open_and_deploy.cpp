#include "pipeline/stages/open_and_deploy.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "base/text.h"
#include "config/results.h"
#include "config/validate.h"
#include "graph/rewrites/product_forms.h"
#include "graph/rewrites/rewrite.h"
#include "graph/rewrites/unfold.h"
#include "graph/transformer.h"
#include "onnx/model.h"
#include "onnx/write.h"
#include "pipeline/check.h"
#include "pipeline/deployed.h"
#include "pipeline/stages/blocks.h"
#include "pipeline/stages/floats.h"
#include "pipeline/stages/integers.h"
#include "quantization/assignment.h"
#include "quantization/blocks/block_weights.h"
#include "run/comparison/proof.h"
#include "run/context.h"
#include "run/files/outputs.h"
#include "run/files/run_directory.h"
#include "run/model/finish.h"
#include "run/model/proposals.h"
#include "shim/shared_work.h"
#include "store/device_route.h"

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
  if (options.device.gds == GdsMode::on && tunes(options.finetune.solver))
    store::open_cuda_storage(options.device.cuda.front(), GdsMode::on, run.work->path());
}

void canonicalize(Run& run) {
  auto& model = run.model;
  run.note(run.options.notes);
  graph::unfold(model, run.limits());
  run.note(config::graph_notes(graph::lift_constants(model)));
  run.note(config::graph_notes(graph::drop_initializer_inputs(model)));
  graph::sort_topologically(model);
  if (const auto& shapes = run.options.config.input_shapes; !shapes.empty())
    run.note(config::graph_notes(graph::fix_input_shapes(model, shapes)));
  // Blocks are made of the model as it is; preparing it for other formats does the same.
  if (run.recipe.result == config::kBlocks) {
    quantization::refuse_absent_weights(model);
    run.note(config::graph_notes(graph::einsums_with_weights(model)));
    run.note(config::graph_notes(
        graph::plain_gemms(model, [](auto bytes) { return onnx::TensorData::owned(std::move(bytes)); })));
  }
  if (is_timed(run.recipe)) run.timed_inputs = inputs_to_time(model, run.result);
}

void prepare(Run& run) {
  const auto& options = run.options;
  run.result.transformer = graph::find_transformer(run.model, run.limits());
  run.prepared = run::prepare(std::move(run.model), options.config, *run.runtime, run.work->scratch(), run.profiler,
                              run.limits(), {.skipped = options.skip_passes});
  if (run.shared.original.empty()) {
    run.note(options.notes);
    run.note(run.prepared.notes);
  }
  auto& model = run.prepared.model;
  if ((run.recipe.result & (config::kDynamic | config::kMixed)) != 0 && model.opset() < kOpsetOfDynamicQuantizeLinear)
    run.note(config::graph_notes(graph::upgrade_opset(model, run.prepared.types)));
  if (is_timed(run.recipe)) run.timed_inputs = inputs_to_time(model, run.result);
}

void check_samples(Run& run) { check_samples(run.options); }

void write_prepared(Run& run) {
  const auto& file = run.options.prepared_output;
  const auto& prepared = run.integers ? run.integers->draft.prepared : run.prepared;
  run::check_output(*file, prepared.model);
  onnx::write_model(prepared.model, *file, {run.options.external_data_threshold});
}

namespace {

// Why ONNX Runtime's CPU cannot run the file, although others can; empty: it can.
std::string excuse_of(Run& run) {
  std::string reason;
  if (run.cache) reason = run.cache->cache.reason_against_running(run.runtime->version());
  if (run.blocks) reason = run.blocks->reason_against_proof();
  if (!reason.empty() || (run.blocks && !run.floats)) return reason;
  return run::reason_against_proof(run.options);
}

// What integers cost and did stays told beside what the file of 16-bit floats comes to.
void add_comparison(Run& run, std::optional<AccuracyResult> integers) {
  auto& accuracy = run.result.accuracy;
  if (!accuracy) {
    accuracy = std::move(integers);
    return;
  }
  run.result.notes.push_back(
      fmt::format("with 16-bit floats rounded as devices do, the worst output has {:.1f} dB on {}",
                  accuracy->rounded_db.value_or(accuracy->sqnr_db), count_with_noun(accuracy->samples, "sample")));
  if (!integers) return;
  integers->samples = accuracy->samples;
  integers->sample_names = accuracy->sample_names;
  integers->sqnr_db = accuracy->sqnr_db;
  integers->cosine = accuracy->cosine;
  integers->worst_sample_db = accuracy->worst_sample_db;
  integers->lost_channels = accuracy->lost_channels;
  integers->worst_channels = accuracy->worst_channels;
  integers->rounded_db = accuracy->rounded_db;
  accuracy = std::move(integers);
}

void compare(Run& run, const std::filesystem::path& file) {
  auto options = run.options;
  if (!run.shared.original.empty()) options.model = run.shared.original;
  options.output = file;
  run.result.model_bytes_after = run::size_on_disk(onnx::read_model(file));
  auto before = std::exchange(run.result.accuracy, std::nullopt);
  run.report.comparison = compare_models(options, run.work->path(), run.profiler, run.result);
  if (run.integers) add_comparison(run, std::move(before));
}

bool makes_floats(const Run& run) { return run.recipe.result == config::kBlockFloats || run.result.floats.has_value(); }

// What integers of a stage before this one cost was judged there.
void refuse_if_useless(Run& run, const std::filesystem::path& file) {
  if (!makes_floats(run) || !must_be_of_use(run.options)) return;
  compare(run, file);
  if (run.recipe.lowers_rest || !run.shared.original.empty()) return;
  refuse_useless(run.options, run.result, run.result.floats ? "16-bit floats" : "block floats");
}

// A target other than the runtime's CPU reads what it was asked to.
bool can_store_otherwise(const Run& run) {
  const auto& options = run.options;
  const bool has_other_form = options.weights_only.form == WeightForm::qdq || options.weights_only.accuracy_level != 0;
  return run.blocks && has_other_form && run.recipe.target->is_ort_cpu && shim::size_of(options.resources.ranks) == 1;
}

}  // namespace

void leave_rest_to_first(Run& run) { run::leave_rest_to_first(run.options.resources); }

void write_result(Run& run) {
  run::Prover prove(run.options, run.runtime_or_none());
  prove.skip_because(excuse_of(run));
  if (can_store_otherwise(run)) prove.has_other_form();
  TargetNotes told;
  if (run.floats || run.recipe.result == config::kBlockFloats) {
    prove.require([&](const auto& file) {
      refuse_if_useless(run, file);
      told = target_notes(run.options, file, *run.runtime);
    });
  }
  run::write_output(run.model, run.options, &prove, run.result);
  run.note(told.lines);
}

void check_running(Run& run) {
  const auto& file = run.options.output;
  std::string reason;
  if (run.cache) reason = reason_against_running_cache(run.cache->cache, run.options, file, *run.runtime);
  if (run.blocks) reason = run.blocks->reason_against_running(file);
  run.runs_here = reason.empty();
  if (!reason.empty()) run.result.notes.push_back(std::move(reason));
}

void time_result(Run& run) {
  if (run.runs_here && run.timed_inputs && run.runtime)
    time_models(run.options, *run.timed_inputs, *run.runtime, run.profiler, run.result, run.sample_seconds);
}

void compare_on_more(Run& run) {
  const auto scope = run.profiler.scope(run::kComparisonStage);
  auto& evaluator = run.integers->evaluator;
  measure_on_more(run.options, run.result, evaluator ? &evaluator->float_results() : nullptr);
}

void compare_result(Run& run) {
  const bool converts = (run.recipe.result & kWithoutIntegers) != 0 || run.recipe.lowers_rest;
  if (!converts) {
    if (run.runs_here) run.report.comparison = compare_models(run.options, run.work->path(), run.profiler, run.result);
  } else if (makes_floats(run) && !must_be_of_use(run.options) && (!run.floats || run.floats->has_samples)) {
    compare(run, run.options.output);
  }
  if ((run.recipe.result & config::kSampled) == 0 && run.result.accuracy)
    run.result.samples = run.result.accuracy->samples;
}

void tell_of_lowered(Run& run) {
  count_integers(run, onnx::read_model(run.options.output));
  if (run.options.bench)
    run.result.notes.emplace_back("latency was not measured: the runtime's CPU has no kernels of 16-bit floats");
}

QuantizeResult finish(Run& run) {
  if (run.work) run.work->finish();
  run.run_profiler.finish();
  const auto directory = run.work ? run.work->scratch() : std::filesystem::path();
  run::write_reports(run.report, {run.options, run.result.notes, directory, &run.result}, run.run_profiler);
  run.result.stages = run.run_profiler.stage_reports();
  run.result.peak_memory = run.profiler.peak_memory();
  return std::move(run.result);
}

}  // namespace detent::pipeline
