#include "pipeline/stages/deploy.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "config/block_float_names.h"
#include "onnx/model.h"
#include "pipeline/check_model.h"
#include "pipeline/deployed.h"
#include "pipeline/stages/blocks.h"
#include "pipeline/stages/cache.h"
#include "pipeline/stages/floats.h"
#include "pipeline/stages/integers.h"
#include "run/comparison/proof.h"
#include "run/files/outputs.h"
#include "run/model/kv_cache.h"
#include "run/shared_run.h"
#include "shim/shared_work.h"

namespace detent::pipeline {
namespace {

// Why ONNX Runtime's CPU cannot run the file, although others can; empty: it can.
std::string excuse_of(Run& run) {
  std::string reason;
  if (run.cache) reason = run::reason_against_running(run.options.kv_cache.type, run.runtime->version());
  if (run.blocks) reason = run.blocks->reason_against_proof();
  if (!reason.empty() || (run.blocks && !run.floats)) return reason;
  return run::reason_against_proof(run.floats ? run.floats->config : run.options.config);
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
  return run.blocks && options.weights_only.form == WeightForm::qdq && run.recipe.target->is_ort_cpu &&
         shim::size_of(options.resources.ranks) == 1;
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
  auto reason = run.blocks ? run.blocks->reason_against_running(file)
                           : reason_against_running_cache(run.options, file, *run.runtime);
  run.runs_here = reason.empty();
  if (!reason.empty()) run.result.notes.push_back(std::move(reason));
}

void time_result(Run& run) {
  if (run.runs_here && run.timed_inputs && run.runtime)
    time_models(run.options, *run.timed_inputs, *run.runtime, run.profiler, run.result, run.sample_seconds);
}

void compare_result(Run& run) {
  const bool converts = (run.recipe.result & (kFloats | config::kBlockFloats)) != 0 || run.recipe.lowers_rest;
  if (!converts) {
    if (run.runs_here) run.report.comparison = compare_models(run.options, run.work->path(), run.profiler, run.result);
  } else if (makes_floats(run) && !must_be_of_use(run.options) && (!run.floats || run.floats->has_samples)) {
    compare(run, run.options.output);
  }
  const bool needs_no_samples = (run.recipe.result & (config::kDynamic | config::kBlockFloats)) != 0;
  if (needs_no_samples && run.result.accuracy) run.result.samples = run.result.accuracy->samples;
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
  run::write_reports(run.report, run::request_of(run.options, run.result, directory), run.run_profiler);
  run.result.stages = run.run_profiler.stage_reports();
  run.result.peak_memory = run.profiler.peak_memory();
  return std::move(run.result);
}

}  // namespace detent::pipeline
