#include "pipeline/stages/integers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "base/process.h"
#include "config/presets.h"
#include "config/targets.h"
#include "graph/decisions.h"
#include "graph/index.h"
#include "onnx/write.h"
#include "pipeline/check.h"
#include "pipeline/deployed.h"
#include "pipeline/stages/open_and_deploy.h"
#include "quantization/assignment.h"
#include "quantization/emit/dynamic.h"
#include "quantization/emit/emitters.h"
#include "quantization/placement/value_kinds.h"
#include "quantization/weight_operators.h"
#include "remedies/fallback.h"
#include "remedies/remedies.h"
#include "remedies/weight_tuning.h"
#include "run/collect.h"
#include "run/comparison/pairing.h"
#include "run/comparison/proof.h"
#include "run/files/outputs.h"
#include "run/model/finish.h"
#include "run/model/format_choice.h"
#include "run/model/prepare.h"
#include "run/model/proposals.h"
#include "run/model/spared_nodes.h"
#include "run/records/run_report.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"
#include "shim/ranks.h"
#include "shim/shared_work.h"

namespace detent::pipeline {
namespace {

using profile::Step;

// Timing what devices do costs a little: only for those who want to see it.
profile::DeviceActivity* activity(Run& run) { return run.recipe.reports ? &run.profiler.device() : nullptr; }

std::size_t recurrent_layers(const Run& run) {
  return run::recurrent_layers(run.integers->draft.prepared, run.options.config).size();
}

// Models, values and counters that are the same give the same statistics of the same samples. That of other models or
// values would not do: where taps stand decides what the runtime fuses, and so how it rounds.
std::string key_of_pass(const onnx::Model& model, const std::vector<std::string>& values,
                        const run::CollectOptions& collect) {
  Hasher hasher;
  hasher.add(onnx::encode_model(model, [](const onnx::Tensor& tensor) -> std::optional<onnx::ExternalLocation> {
    if (tensor.data.size() == 0) return std::nullopt;
    Hasher data;
    tensor.data.write_to([&](std::span<const std::byte> bytes) { data.add(bytes); });
    return onnx::ExternalLocation{data.result().text(), 0};
  }));
  hasher.add(
      fmt::format("{}\n{} {} {}", fmt::join(values, "\n"), collect.histograms, collect.votes, collect.allow_nonfinite));
  return hasher.result().text();
}

calibration::Statistics new_statistics(Run& run) {
  const auto& options = run.options;
  auto& work = *run.integers;
  const auto& placement = work.draft.assignment.placement;
  run::CollectOptions collect{.histograms = needs_histograms(run.recipe),
                              .votes = needs_votes(run.recipe),
                              .allow_nonfinite = options.allow_nonfinite,
                              .workers = options.workers,
                              .keep_result = tunes(options.finetune.solver) || config::may_tune(options)};
  auto* known = run.shared.observed;
  const auto key =
      known == nullptr ? std::string() : key_of_pass(work.draft.prepared.model, placement.to_observe(), collect);
  if (known != nullptr && known->contains(key)) return known->at(key);
  run.report.recording.directory = run.work->scratch();
  if (run.recipe.reports) collect.recording = &run.report.recording;
  run::DeviceCalibration device(options.device, placement.to_observe().size(), collect.histograms, run.work->scratch(),
                                activity(run));
  device.lend(collect);
  // Samples in memory and those that draw random numbers pass by as a whole.
  const auto& model = work.draft.prepared.model;
  const bool shares = options.samples == nullptr && !graph::draws_numbers(model);
  if (shares) collect.ranks = options.resources.ranks;
  const auto share =
      shim::size_of(collect.ranks) > 1 ? run.open_samples(run::input_specs(model), collect.ranks) : nullptr;
  auto& source = share ? *share : *work.source;
  const double start = run.profiler.now();
  auto [statistics, notes] =
      run::collect_within(run.context(run.work->path()), *run.work, work.draft.prepared, placement, source, collect);
  if (statistics.samples > 0)
    run.sample_seconds = (run.profiler.now() - start) / static_cast<double>(statistics.samples);
  run.result.repeated_samples = statistics.repeated;
  run.note(notes);
  run.note(device.notes());
  run.note(source.notes());
  if (device.use() != nullptr) run.report.device = run::RunReport::Device{options.device, *device.use(), {}};
  if (known != nullptr) known->emplace(key, statistics);
  return statistics;
}

void narrow_masks(remedies::Draft& draft, const calibration::Statistics& statistics, const QuantConfig& config) {
  if (!config::target(config).all_operators) return;
  auto& model = draft.prepared.model;
  const auto& placement = draft.assignment.placement;
  quantization::narrow_masks(quantization::mask_ranges(model, placement, statistics), placement, model,
                             draft.proposals.constants);
}

// What was observed serves gates in floats and in integers: the latter only where that is measured to do no harm.
void settle_placement(Run& run, const calibration::Statistics& statistics) {
  const auto& config = run.options.config;
  auto& draft = run.integers->draft;
  auto& placement = draft.assignment.placement;
  const auto place_again = [&] {
    quantization::copy_shared_ranges(placement, draft.proposals.ranges);
    quantization::copy_shared_ranges(placement, draft.proposals.wide);
    placement = run::place_qdq_pairs(draft.prepared, config);
  };
  if (!draft.prepared.integer_gates.empty()) {
    quantization::copy_shared_ranges(placement, draft.proposals.ranges);
    draft.prepared.integer_gates.clear();
    placement = run::place_qdq_pairs(draft.prepared, config);
  }
  const auto freed = run::free_small_results(draft.prepared, placement, draft.proposals, config);
  if (!freed.empty()) place_again();
  run.note(freed);
  auto left = run::leave_unseen_bodies(draft.prepared, placement, draft.proposals.ranges);
  for (auto& note : run::widen_unequal_concats(draft.prepared, placement, statistics, draft.proposals, run.options))
    left.push_back(std::move(note));
  if (!left.empty()) place_again();
  run.note(left);
  draft.assign(std::move(placement), config);
}

// LSTM layers that nobody named: no trial rounds as they do, so that only measuring speaks for them.
void try_recurrent(Run& run) {
  auto& prepared = run.integers->draft.prepared;
  const auto& options = run.options;
  if (!config::tries_recurrent(options.config) || !config::may_measure_accuracy(options) ||
      !config::applies_remedies(options))
    return;
  for (const auto n : quantization::recurrent_layers(prepared.model, options.config)) {
    const auto& id = prepared.model.graph.nodes[n].id();
    if (!prepared.choice(id).in_float) prepared.nodes[id].on_integers = true;
  }
  if (options.optimize_for == OptimizeFor::accuracy) return;
  for (const auto n : quantization::layers_to_store(prepared.model, options.config)) {
    const auto& id = prepared.model.graph.nodes[n].id();
    if (!prepared.choice(id).on_integers) prepared.nodes[id].stored = true;
  }
}

bool measures_accuracy(Run& run) {
  const auto& work = *run.integers;
  if (!config::may_measure_accuracy(run.options) || !work.measures_if_needed) return false;
  const auto& prepared = work.draft.prepared;
  if (work.draft.assignment.placement.marks.empty() && !run::changes_recurrent(prepared, run.options.config) &&
      !(config::tries_stored_weights(run.options) &&
        !quantization::products_to_store(prepared.model, run.options.config, prepared.transposed).empty()))
    return false;  // the float model
  if (!work.source) run.result.notes.emplace_back("accuracy was not measured: there are no samples");
  return work.source != nullptr;
}

void checkpoint(Run& run, const LayerTuning& layer) {
  run.profiler.checkpoint(fmt::format("{}: {} {:.4g} -> {:.4g}", profile::step_name(Step::fast_finetune), layer.name,
                                      layer.error_before, layer.error_after));
  if (run.options.layer_tuned) run.options.layer_tuned(layer);
}

void make_evaluator(Run& run) {
  auto& work = *run.integers;
  work.evaluator.emplace(remedies::TrialEnv{.options = run.options,
                                            .model = work.draft.prepared.model,
                                            .runtime = *run.runtime,
                                            .source = *work.source,
                                            .profiler = run.profiler,
                                            .directory = run.work->path(),
                                            .weights = run.work->scratch(),
                                            .samples = run.result.samples,
                                            .layer_tuned = [&run](const auto& layer) { checkpoint(run, layer); },
                                            .activity = activity(run)});
}

void emit(Run& run) {
  const auto scope = run.profiler.scope(Step::quantization_static);
  auto& draft = run.integers->draft;
  run.note(run::notes_for_this_machine(run.options.config));
  run.note(draft.assignment.notes);
  run::record_assignment(draft.prepared.model, draft.assignment, run.result);
  draft.emitted = quantization::emit_qdq(draft.prepared, draft.assignment);
  run.note(draft.emitted->notes);
}

// As asked, or where measuring speaks for it.
void tune_weights(Run& run) {
  const auto& options = run.options;
  auto& work = *run.integers;
  auto& draft = work.draft;
  if (tunes(options.finetune.solver)) {
    const auto scope = run.profiler.scope(Step::fast_finetune);
    auto tuned = remedies::tune_weights(draft, *work.evaluator, options.finetune, true);
    draft.emitted->model = std::move(tuned.model);
    draft.layers = std::move(tuned.layers);
    run.note(tuned.notes);
    if (work.measured) remedies::check_target(draft, *work.evaluator);
  } else if (work.measured && work.tunes_if_needed && config::may_tune(options)) {
    try {
      remedies::improve_emitted(draft, *work.evaluator);
    } catch (const Error& e) {  // what nobody asked for is no reason to end
      const auto* ranks = options.resources.ranks;
      if (e.kind() != ErrorKind::resource || (ranks != nullptr && ranks->size() > 1)) throw;
      run.result.notes.push_back(fmt::format("left out: {}", e.what()));
    }
    run.note(draft.notes);
  }
  if (!options.device.is_cpu() && !run.report.device && !draft.layers.empty())
    run.report.device = run::RunReport::Device{options.device, {}, {}};
  if (!options.device.is_cpu() && options.statistics && draft.layers.empty())
    run.result.notes.emplace_back("nothing ran on the device: statistics were given, and nothing is fine-tuned");
  run.result.layers = draft.layers;
}

void tell_accuracy(Run& run) {
  auto& work = *run.integers;
  if (!work.measured) return;
  auto note = remedies::note_on_remaining_error(work.draft, run.options);
  if (!note.empty()) run.result.notes.push_back(std::move(note));
  run.result.accuracy = std::move(work.draft.result);
}

// Of notes that end so.
void take_back(std::string_view words, std::vector<std::string>& notes) {
  for (auto& note : notes) {
    if (note.ends_with(words)) note.resize(note.size() - words.size());
  }
}

}  // namespace

void place_integers(Run& run) {
  const auto& options = run.options;
  run.integers = std::make_unique<IntegerWork>();
  auto& work = *run.integers;
  auto& draft = work.draft;
  draft.prepared = run.prepared;  // mixtures without such integers are made of the model as it is
  if (run.recipe.result != config::kMixed) run.prepared = {};
  const auto& model = draft.prepared.model;
  auto& placement = draft.assignment.placement;
  placement = run::place_qdq_pairs(draft.prepared, options.config);
  draft.proposals.constants = quantization::scan_weights(model, placement, options.allow_nonfinite);
  run.note(placement.notes);
  if (run.recipe.has_samples) work.source = run.open_samples(run::input_specs(model));
}

void describe_layers(Run& run) {
  auto& work = *run.integers;
  const auto& placement = work.draft.assignment.placement;
  const planning::Circumstances circumstances{placement.to_observe().size(), true, thread_count(run.options.threads),
                                              static_cast<std::size_t>(run.options.workers), 0};
  run::describe_layers(work.draft.prepared, placement, *run.runtime, *work.source, circumstances, run.report);
}

void choose_by_speed(Run& run) {
  auto& work = *run.integers;
  auto& placement = work.draft.assignment.placement;
  auto choice = run::choose_by_speed(work.draft.prepared, placement, run.options, *run.runtime, work.source.get(),
                                     run.work->path(), run.work->scratch());
  if (placement.marks.empty() && tunes(run.options.finetune.solver))
    throw usage_error("--finetune: this machine runs all layers faster in float, so that none is quantized",
                      "give --optimize-for size");
  run.note(choice.notes);
  run.result.faster_in_float = std::move(choice.in_float);
}

void keep_to_budget(Run& run) {
  auto& work = *run.integers;
  const auto left_out = remedies::keep_to_budget(run.options, work.draft.prepared, work.draft.assignment.placement,
                                                 *run.runtime, *work.source);
  run.note(left_out.notes);
  work.measures_if_needed = !left_out.measuring;
  work.tunes_if_needed = !left_out.tuning;
  work.stores_if_harmless = !left_out.storing;
  if (left_out.timing) run.timed_inputs.reset();
}

void calibrate(Run& run) {
  const auto& options = run.options;
  auto& work = *run.integers;
  run.report.collect_start = run.profiler.now();
  auto statistics =
      options.statistics ? run::saved_statistics(options, *run.fingerprint, work.source.get()) : new_statistics(run);
  run.result.samples = statistics.samples;
  if (options.statistics && work.source) run.note(work.source->notes());
  if (!options.statistics) run.report.samples_run = statistics.samples;
  auto& proposals = work.draft.proposals;
  auto constants = std::move(proposals.constants);
  proposals = run::propose(work.draft.prepared, work.draft.assignment.placement, statistics, options, *run.runtime);
  proposals.constants = std::move(constants);
  narrow_masks(work.draft, statistics, options.config);
  settle_placement(run, statistics);
  if (run.recipe.reports) run.report.statistics = std::move(statistics);
  trim_heap();  // of counters and what was read
}

void improve(Run& run) {
  auto& work = *run.integers;
  if (work.source) {
    make_evaluator(run);
    try_recurrent(run);
  }
  if (measures_accuracy(run)) {
    const auto scope = run.profiler.scope(run::kSensitivityStage);
    if (auto note = run::inference_device_note(run.options.device, *run.runtime, "trials"); !note.empty())
      run.note({std::move(note)});
    const auto notes_before = run.result.notes.size();
    remedies::improve(work.draft, *work.evaluator);
    run.note(work.draft.notes);
    work.draft.notes.clear();
    work.measured = true;
    work.improved.emplace(IntegerWork::Improved{work.draft, run.result, notes_before});
  }
}

void emit_integers(Run& run) {
  emit(run);
  tune_weights(run);
  auto& work = *run.integers;
  if (work.measured && work.stores_if_harmless) remedies::improve_written(work.draft, *work.evaluator);
  tell_accuracy(run);
  auto& draft = work.draft;
  const auto products = run::stored_products(draft.prepared).size();
  if (products == 0) take_back(run::kWeightsOf8Bits, run.result.notes);
  // Operators on integers are counted as they are.
  const bool counts_first = run.options.config.quant_format == QuantFormat::qdq;
  if (!run.recipe.lowers_rest && counts_first) count_integers(run, draft.emitted->model);
  const bool equalized = run.result.accuracy && !run.result.accuracy->equalized.empty();
  run::write_applied({equalized, !run.result.layers.empty()}, draft.emitted->model);
  run.note(run::finish_integers(draft.prepared, run.options, draft.emitted->model));
  if (!run.recipe.lowers_rest && !counts_first) count_integers(run, draft.emitted->model);
  const auto on_integers = recurrent_layers(run);
  run.result.nodes_quantized += on_integers + run::stored_layers(draft.prepared).size() + products;
  run.result.nodes_in_float -= products;
  const auto all = quantization::recurrent_layers(draft.prepared.model, run.options.config).size();
  run.result.nodes_in_float += all - on_integers;
}

// The written model of integers beside what was measured to choose it.

namespace {

constexpr std::size_t kCompared = 4;  // samples that both models run on for a report
constexpr double kOtherwise = 3;      // dB that the deployed model may lose
constexpr double kAsGoodDb = 60;      // where a difference is of no interest

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
  for (auto& words : run::notes_on_uncompared_outputs(found)) {
    auto& notes = run.result.notes;
    if (std::find(notes.begin(), notes.end(), words) == notes.end()) notes.push_back(std::move(words));
  }
}

// Recurrent layers were chosen as deployed, and no trial has them.
bool is_computed_otherwise(const Run& run) {
  const auto& work = *run.integers;
  return !work.is_dynamic && work.lost_db > kOtherwise && run.recipe.target->is_ort_cpu &&
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
  if (judged) prove.judge(work.evaluator->source(), judged->skipped, judged->count, &work.evaluator->float_results());
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
    if (first_db < kAsGoodDb) run.result.notes.push_back(told);
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

void leave_all_in_float(Run& run) {
  auto& work = *run.integers;
  run.result = work.improved->result;
  run.result.notes.resize(work.improved->notes_before);
  work.draft = work.improved->draft;
  auto& prepared = work.draft.prepared;
  for (const auto& node : prepared.model.graph.nodes) prepared.leave_in_float(node.id(), run::InFloat::faster);
  remedies::leave_in_float(work.draft, *work.evaluator, {});
  emit_integers(run);
}

void compare_layers(Run& run) {
  if (run.options.samples != nullptr) run.options.samples->rewind();
  const auto scope = run.profiler.scope(run::kComparisonStage);
  run.report.comparison = compare_layers(run.options, *run.runtime, kCompared, run.result);
}

}  // namespace detent::pipeline
