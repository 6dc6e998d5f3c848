// The written model of integers beside what was measured to choose it.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "config/targets.h"
#include "graph/index.h"
#include "pipeline/check_model.h"
#include "pipeline/computed_otherwise.h"
#include "pipeline/deployed.h"
#include "pipeline/stages/integers.h"
#include "remedies/remedies.h"
#include "remedies/workload.h"
#include "run/comparison/proof.h"
#include "run/files/outputs.h"
#include "run/model/finish_integers.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"

namespace detent::pipeline {
namespace {

constexpr std::size_t kCompared = 4;  // samples that both models run on for a report
constexpr double kOtherwise = 3;      // dB that the deployed model may lose

Shapes shapes_of_first_sample(const Run& run) {
  const auto& work = *run.integers;
  if (!work.measured) return {};
  return run::first_sample(*work.source, run::input_specs(work.draft.emitted->model)).shapes;
}

// What is told of accuracy is what the written file does.
void take_deployed(Run& run, const run::DeployedFidelity& found) {
  auto& work = *run.integers;
  auto& accuracy = run.result.accuracy ? *run.result.accuracy : run.result.accuracy.emplace();
  work.lost_db = work.measured ? accuracy.sqnr_db - found.sqnr_db : 0;
  run::copy_fidelity(found, accuracy);
  for (auto& words : run::words_of_outputs(found)) {
    auto& notes = run.result.notes;
    if (std::find(notes.begin(), notes.end(), words) == notes.end()) notes.push_back(std::move(words));
  }
}

// Recurrent layers were chosen as deployed, and no trial has them.
bool is_computed_otherwise(const Run& run) {
  const auto& work = *run.integers;
  return work.lost_db > kOtherwise && run.recipe.target->is_ort_cpu &&
         !run::changes_recurrent(work.draft.prepared, run.options.config);
}

}  // namespace

void count_integers(Run& run, const onnx::Model& model) {
  auto& accuracy = run.result.accuracy;
  if (!accuracy || !accuracy->integer_macs || !run.recipe.target->is_ort_cpu) return;
  auto& work = *run.integers;
  auto& share = accuracy->integer_macs;
  share = integers_on_cpu(run.options, model, *run.runtime, shapes_of_first_sample(run));
  if (!share) return;
  const auto& prepared = work.draft.prepared;
  *share += remedies::recurrent_macs(prepared, graph::Index(prepared.model), work.evaluator->static_types(work.draft),
                                     run.options.config);
}

void write_integers(Run& run) {
  const auto scope = run.profiler.scope(profile::Step::post_process);
  const auto& options = run.options;
  auto& work = *run.integers;
  if (work.evaluator) work.evaluator->release_trial_memory();
  run::Prover prove(options, &*run.runtime);
  // Small floats have no trials to choose by, but what is written can be told of.
  const bool tells = work.measured || (work.evaluator && is_float(options.config.activation_type));
  const auto judged = tells ? std::optional(work.evaluator->judging_samples()) : std::nullopt;
  if (judged) prove.judge(work.evaluator->source(), judged->skipped, judged->count, &work.evaluator->float_runs());
  TargetNotes told;
  // What is told of the integers is what the consumer makes of them.
  if (!run.recipe.target->is_ort_cpu)
    prove.require([&](const auto& f) { told = target_notes(options, f, *run.runtime, shapes_of_first_sample(run)); });
  run::write_output(work.draft.emitted->model, options, &prove, run.result);
  if (prove.fidelity()) take_deployed(run, *prove.fidelity());
  run.note(told.lines);
  if (run.result.accuracy && told.integer_macs) run.result.accuracy->integer_macs = *told.integer_macs;
}

void leave_inexact_in_float(Run& run) {
  if (!is_computed_otherwise(run)) return;
  auto& work = *run.integers;
  const auto scope = run.profiler.scope(run::kSensitivityStage);
  const double first_db = run.result.accuracy->sqnr_db;
  const auto [nodes, words] =
      computed_otherwise(run.options, work.draft.prepared.model, run.runtime->peak_activation_bytes());
  const auto told =
      fmt::format("as deployed the worst output has {:.1f} dB, where rounding each value gives {:.1f}: {}", first_db,
                  first_db + work.lost_db, words);
  if (nodes.empty() || !config::applies_remedies(run.options) || run.options.config.formats_given) {
    run.result.notes.push_back(told);
    return;
  }
  auto first = std::exchange(run.result, work.improved->result);
  work.draft = work.improved->draft;
  remedies::leave_in_float(work.draft, *work.evaluator, nodes);
  emit_integers(run);
  const double second_db = work.evaluator->deployed(work.draft.emitted->model).sqnr_db;
  if (second_db > first_db) {
    run.result.notes.push_back(told + ", so that stays in float");
    return write_integers(run);
  }
  run.result = std::move(first);
  run.result.notes.push_back(fmt::format("{}; in float that gives {:.1f} dB", told, second_db));
}

void compare_layers(Run& run) {
  if (run.options.samples != nullptr) run.options.samples->rewind();
  const auto scope = run.profiler.scope(run::kComparisonStage);
  run.report.comparison = compare_layers(run.options, *run.runtime, kCompared, run.result);
}

}  // namespace detent::pipeline
