#include "remedies/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "base/parallel.h"
#include "base/process.h"
#include "base/text.h"
#include "config/presets.h"
#include "config/targets.h"
#include "planning/memory.h"
#include "planning/segments.h"
#include "quantization/emit/emitters.h"
#include "remedies/weight_tuning.h"
#include "run/comparison/proof.h"
#include "run/model/finish.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"
#include "solve/sweep/finetune.h"

namespace detent::remedies {
namespace {

// Single values are measured on one of so many samples. So few are measured at the results each; more of them near
// themselves, in parts of the model, and in groups at the results.
constexpr std::size_t kSamplesForEach = 16;
constexpr std::size_t kSamplesForEachNear = 32;
constexpr std::size_t kMostSamples = 4;
constexpr std::size_t kFewValues = 16;
constexpr std::size_t kParts = 24;
constexpr std::size_t kGroups = 8;
constexpr double kLeastHarm = 1e-12;
// Inferences that judging whole assignments may take for each calibration sample, with a target and without, and how
// many are judged at the most. Each takes a run of the float model beside its own.
constexpr std::size_t kJudgingRunsPerSampleForTarget = 3;
constexpr std::size_t kMostAssignmentsForTarget = 15;
constexpr std::size_t kJudgingRunsPerSample = 2;
constexpr std::size_t kMostAssignments = 4;
// With fewer, an accuracy says little about other samples: so many are judged where there are as many. Without a
// target, more than four times as many tell nothing new.
constexpr std::size_t kFewSamples = 8, kManySamples = 32;

constexpr const char* kCandidate = "candidate.onnx";

}  // namespace

Evaluator::Evaluator(TrialEnv env)
    : env_(std::move(env)), float_results_(env_.weights, run::guard_options(env_.options).disk) {}

// Of trials, whose passes are told by what they are for.
run::Context Evaluator::context() const {
  auto context = env_.context();
  if (context.progress) {
    context.progress = [this, tell = context.progress](const std::string&, std::uint64_t done, std::uint64_t total) {
      tell(fmt::format("accuracy: {}", purpose_), done, total);
    };
  }
  return context;
}

TrialRunner& Evaluator::runner(const run::Prepared& prepared) {
  if (!runner_) runner_.emplace(prepared, source(), context());
  return *runner_;
}

run::ContentOrderedSamples& Evaluator::source() {
  if (!source_) {
    const auto ahead = share_of_budget(options().resources, run::ContentOrderOptions().ahead);
    source_.emplace(env_.source, run::ContentOrderOptions{0, has_rows_for_samples(), ahead});
  }
  return *source_;
}

bool Evaluator::has_rows_for_samples() {
  env_.source.rewind();
  const auto sample = env_.source.next();
  return sample && run::rows_are_samples(env_.runtime, env_.model, *sample, options().threads);
}

void Evaluator::release_trial_memory() {
  runner_.reset();
  if (source_) source_->keep(false);
  trim_heap();
}

void Evaluator::model_changed() {
  runner_.reset();
  judged_.reset();
  parts_.clear();
  static_types_.reset();
}

const graph::ValueTypes& Evaluator::static_types(const Draft& draft) {
  if (!static_types_)
    static_types_ = run::static_types(draft.prepared.types, draft.prepared.model, env_.runtime, source());
  return *static_types_;
}

double Evaluator::score(const Draft& draft, const quantization::Assignment& assignment) {
  return score(draft, quantization::emit_qdq(draft.prepared, assignment).model);
}

double Evaluator::score(const Draft& draft, onnx::Model quantized) {
  run::finish_integers(draft.prepared, options(), quantized);
  const auto& accuracy = options().accuracy;
  return run::measured_by_first(options().resources, options().stop, [&] {
    return run::measure_candidate(quantized, env_.directory / kCandidate, options(), [&](const auto& file) {
      return accuracy.metric == AccuracyMetric::command
                 ? run::share_of_float_score(accuracy, options().model, file, float_score_, options().stop)
                 : run::metric_value(deployed(file), accuracy.metric);
    });
  });
}

run::DeployedFidelity Evaluator::deployed(const onnx::Model& quantized) {
  return run::measure_candidate(quantized, env_.directory / kCandidate, options(),
                                [&](const auto& file) { return deployed(file); });
}

run::DeployedFidelity Evaluator::deployed(const std::filesystem::path& file) {
  const auto samples = judging_samples();
  source().rewind();
  source().skip(samples.skipped);
  return run::deployed_fidelity(env_.runtime, options().model, file, source(), samples.count,
                                run::guard_options(options()), {}, &float_results_);
}

std::vector<TrialResult> Evaluator::run(const Draft& draft, const quantization::AssignedValues& tapped,
                                        std::span<const Trial> trials, TrialSamples samples,
                                        decltype(TrialOptions::watch) watch, const quantization::Placement* placement) {
  const auto& marks = placement != nullptr ? *placement : draft.assignment.placement;
  if (watch) return runner(draft.prepared).run(marks, tapped, trials, samples, std::move(watch), &float_results_);
  return share_trials(options().resources.ranks, trials, options().stop, [&](std::span<const Trial> some) {
    return runner(draft.prepared).run(marks, tapped, some, samples, {}, &float_results_);
  });
}

std::vector<TrialResult> Evaluator::run_near(const Draft& draft, const quantization::AssignedValues& tapped,
                                             std::span<const Trial> trials, TrialSamples samples) {
  const auto model = make_trial_model(draft.prepared.model, draft.prepared.types, draft.assignment.placement, tapped);
  const auto parts = parts_in(model, draft);
  return share_trials(options().resources.ranks, trials, options().stop, [&](std::span<const Trial> some) {
    return run_near_trials(context(), model, parts, some, source(), samples);
  });
}

std::vector<int> Evaluator::parts_in(const TrialModel& model, const Draft& draft) {
  if (parts_.empty()) {
    auto types = static_types(draft);
    // Where sizes depend on values, most of the work would stand in a few parts.
    const auto unknown = run::values_of_unknown_shape(draft.prepared.model, types);
    if (!unknown.empty()) run::measure_shapes(context(), draft.prepared.model, source(), unknown, types);
    parts_ = parts_of(draft.prepared.model, types, kParts);
  }
  auto parts = model.map_cuts(parts_);
  parts.front() = 0;  // copies of inputs stand before the first node
  return parts;
}

TrialResult Evaluator::judge(const Draft& draft, const quantization::AssignedValues& tapped,
                             const quantization::Placement& placement, const Trial& trial) {
  return runner(draft.prepared).run(placement, tapped, {&trial, 1}, judging_samples(), {}, &float_results_).front();
}

TrialResult Evaluator::judge(const Draft& draft, const quantization::Assignment& assignment) {
  const auto roundings = roundings_of(assignment.values);
  return judge(draft, assignment.values, assignment.placement, trial_of(roundings));
}

const TrialResult& Evaluator::judged(const Draft& draft) {
  if (!judged_) judged_ = judge(draft, draft.assignment);
  return *judged_;
}

Sensitivities Evaluator::measure(const Draft& draft) {
  const auto& values = draft.assignment.values;
  const auto roundings = roundings_of(values);
  Sensitivities measured;
  std::vector<Trial> alone;
  for (const auto& mark : draft.assignment.placement.marks) {
    if (!values.contains(mark.value)) continue;
    measured.values.push_back(mark.value);
    alone.push_back({{mark.value, &roundings.at(mark.value)}});
  }
  measured.each_alone = alone.size() <= kFewValues;
  measured.samples = std::clamp<std::size_t>(samples() / kSamplesForEach, 1, kMostSamples);
  if (measured.each_alone) {
    const auto results = run(draft, values, alone, {measured.samples});
    for (std::size_t v = 0; v < alone.size(); ++v) measured.errors[measured.values[v]] = errors_of(results[v]);
    return measured;
  }
  split_group_errors(draft, alone, run_near(draft, values, alone, near_samples()), measured);
  return measured;
}

// The error of each group of neighbours at the results, in proportion to what its values do near themselves.
void Evaluator::split_group_errors(const Draft& draft, const std::vector<Trial>& alone,
                                   const std::vector<TrialResult>& near, Sensitivities& measured) {
  const auto model =
      make_trial_model(draft.prepared.model, draft.prepared.types, draft.assignment.placement, draft.assignment.values);
  const graph::Index index(model.model);
  const auto cuts = parts_in(model, draft);
  const std::size_t parts_in_group = (cuts.size() + kGroups - 2) / kGroups;
  std::map<std::size_t, std::vector<std::size_t>> groups;  // positions in `alone`
  std::vector<double> harm;
  for (std::size_t v = 0; v < alone.size(); ++v) {
    groups[part_of(model, index, cuts, alone[v]) / parts_in_group].push_back(v);
    const auto errors = errors_of(near[v]);
    harm.push_back(std::accumulate(errors.begin(), errors.end(), kLeastHarm));
  }
  std::vector<Trial> together;
  for (const auto& [at, members] : groups) {
    auto& trial = together.emplace_back();
    for (const auto v : members) trial.insert(alone[v].begin(), alone[v].end());
  }
  const auto results = run(draft, draft.assignment.values, together, {measured.samples});
  std::size_t g = 0;
  for (const auto& [at, members] : groups) {
    double sum = 0;
    for (const auto v : members) sum += harm[v];
    for (const auto v : members) {
      auto& errors = measured.errors[measured.values[v]] = errors_of(results[g]);
      for (double& error : errors) error *= harm[v] / sum;
    }
    ++g;
  }
}

double Evaluator::weights_share(const Draft& draft) {
  const auto& values = draft.assignment.values;
  const auto roundings = roundings_of(values);
  std::vector<Trial> trials(2);  // of weights, of all else
  for (const auto& mark : draft.assignment.placement.marks) {
    if (values.contains(mark.value)) trials[mark.is_weight ? 0 : 1][mark.value] = &roundings.at(mark.value);
  }
  const auto results =
      run(draft, values, trials, {std::clamp<std::size_t>(samples() / kSamplesForEach, 1, kMostSamples)});
  const auto all = errors_of(judged(draft));
  const auto worst = static_cast<std::size_t>(std::max_element(all.begin(), all.end()) - all.begin());
  if (all.empty()) return 0;
  const double of_weights = errors_of(results[0])[worst], of_others = errors_of(results[1])[worst];
  return of_weights > 0 ? of_weights / (of_weights + of_others) : 0;
}

TrialSamples Evaluator::near_samples() {
  return {std::clamp<std::size_t>(samples() / kSamplesForEachNear, 1, kMostSamples)};
}

TrialSamples Evaluator::judging_samples() {
  const std::size_t all = samples();
  const std::size_t share = options().accuracy.target
                                ? kJudgingRunsPerSampleForTarget * all / (2 * kMostAssignmentsForTarget)
                                : std::min(kJudgingRunsPerSample * all / (2 * kMostAssignments), kManySamples);
  const std::size_t count = std::max(share, std::min(all, kFewSamples));
  return {count, all - count};
}

namespace {

// Measured: heap in pieces, sums of pairs.
constexpr std::uint64_t kTrials = std::uint64_t{12} << 20;

// Of trials within the budget, in one piece or in segments; above the budget where they do not fit.
std::uint64_t measuring_memory(const onnx::Model& model, const graph::ValueTypes& types,
                               const quantization::Placement& placement, const QuantizeOptions& options,
                               planning::Circumstances circumstances, const SampleSizes& samples,
                               std::uint64_t budget) {
  circumstances.weights_stay = true;
  circumstances.beside =
      std::min(samples.bytes * samples.count, share_of_budget(options.resources, run::ContentOrderOptions().ahead)) +
      trial_memory(model, placement);
  const auto observed = placement.to_observe();
  const std::uint64_t in_one_piece =
      planning::calibration_cost(model, types, observed, circumstances).value().peak_memory();
  if (in_one_piece <= budget) return in_one_piece;
  planning::Budget limits;
  limits.memory = budget;
  limits.disk = options.resources.disk_budget.value_or(std::numeric_limits<std::uint64_t>::max() / 4);
  try {
    return planning::plan_sweep(model, types, observed, circumstances, samples.count, limits).memory;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::resource) throw;
    return in_one_piece;
  }
}

// What runtime and heap grow by in the course of a run: measured on ten models.
constexpr std::uint64_t kGrown = std::uint64_t{8} << 20;

// The run as it stands after calibration, and a process beside it that runs one of the models. Both have the libraries
// and the mapped file in common.
std::uint64_t proving_memory(const planning::CalibrationCost& cost) {
  return 2 * (cost.peak_memory() + kGrown) - planning::kProcess - cost.weights;
}

// Both models as they are deployed, of which the quantized one has a quarter of the weights.
std::uint64_t timing_memory(const planning::CalibrationCost& cost, std::uint64_t copied) {
  return cost.peak_memory() + kGrown + copied + cost.activations + (cost.weights + copied) / 4;
}

// The run as it stands after tuning, which looks for the layers that the runtime computes otherwise than was measured,
// with both models beside.
std::uint64_t searching_memory(const planning::CalibrationCost& cost) {
  return 3 * cost.peak_memory() - 2 * planning::kProcess + kSearchBeside;
}

// What was asked for (fine-tuning, a target for accuracy) and does not fit.
void refuse_over_budget(const QuantizeOptions& options, const StageMemory& needed) {
  const auto budget = options.resources.memory_budget;
  if (!budget) return;
  if (tunes(options.finetune.solver) && needed.tuning > *budget)
    throw planning::over_budget("fine-tuning", needed.tuning, *budget);
  if (options.accuracy.target && needed.measuring > *budget)
    throw planning::over_budget("measuring accuracy", needed.measuring, *budget);
}

}  // namespace

std::uint64_t trial_memory(const onnx::Model& model, const quantization::Placement& placement) {
  const graph::Index index(model);
  std::uint64_t largest = 0, steps = 0;  // of rounded weights
  for (std::size_t n = 0; n < placement.selected.size(); ++n) {
    if (!placement.selected[n]) continue;
    for (const auto& input : model.graph.nodes[n].inputs()) {
      const int at = index.initializer(input);
      if (at == graph::kNone) continue;
      const std::uint64_t size = model.graph.initializers[static_cast<std::size_t>(at)].data.size();
      largest = std::max(largest, size);
      steps += size / sizeof(float);
    }
  }
  return kTrials + largest + std::min(steps, FakeQuantizer::kMostKept);
}

std::uint64_t share_of_budget(const Resources& resources, std::uint64_t without) {
  constexpr std::uint64_t kShare = 16;
  return resources.memory_budget ? std::min(without, *resources.memory_budget / kShare) : without;
}

StageMemory stage_memory(const run::Prepared& prepared, const graph::ValueTypes& types,
                         const quantization::Placement& placement, const QuantizeOptions& options,
                         const SampleSizes& samples, std::uint64_t budget) {
  StageMemory memory;
  const auto& model = prepared.model;
  const planning::Circumstances circumstances{placement.to_observe().size(), false, thread_count(options.threads), 1,
                                              samples.bytes};
  const auto cost = planning::calibration_cost(model, types, placement.to_observe(), circumstances);
  if (!cost) return memory;
  const bool measures = config::may_measure_accuracy(options) && config::has_samples(options);
  if (measures && !placement.marks.empty()) {
    memory.measuring = measuring_memory(model, types, placement, options, circumstances, samples, budget);
    // Whoever sets a target has assignments scored as deployed, in one piece.
    if (options.accuracy.target) memory.measuring = std::max(memory.measuring, cost->peak_memory());
    memory.proving = proving_memory(*cost);
    // See leave_inexact_in_float().
    if (config::target(options.config).is_ort_cpu && !config::writes_16_bits(options.config))
      memory.searching = searching_memory(*cost);
    if (config::may_tune(options))
      memory.tuning = solve::planned_memory(budget, false, model, types, placement.selected, samples.count,
                                            automatic_gptq(options.finetune), circumstances.threads);
  }
  if (measures && placement.marks.empty() && config::tries_stored_weights(options))
    memory.proving = proving_memory(*cost);
  if (tunes(options.finetune.solver))
    memory.tuning = solve::planned_memory(budget, true, model, types, placement.selected, samples.count,
                                          options.finetune, circumstances.threads);
  if (options.bench && !config::writes_16_bits(options.config)) {
    memory.timing = timing_memory(*cost, planning::copied_weights(model));
  }
  return memory;
}

LeftOut keep_to_budget(const QuantizeOptions& options, const run::Prepared& prepared,
                       const quantization::Placement& placement, const exec::Runtime& runtime,
                       data::SampleSource& source) {
  LeftOut left;
  const auto budget = options.resources.memory_budget;
  if (!budget) return left;
  const auto first = run::first_sample(source, run::input_specs(prepared.model));
  const auto types = run::static_types(prepared.types, prepared.model, runtime, source);
  const auto needed = stage_memory(prepared, types, placement, options,
                                   {first.bytes, std::max<std::size_t>(source.sample_count(), 1)}, *budget);
  refuse_over_budget(options, needed);  // before any sample runs
  left.measuring = needed.measuring > *budget;
  left.tuning = !left.measuring && config::may_tune(options) && needed.tuning > *budget;
  left.storing = !left.measuring && config::tries_stored_weights(options) && needed.proving > *budget;
  left.timing = options.bench && needed.timing > *budget;
  const auto tell = [&](bool is_left, const char* what, std::uint64_t bytes) {
    if (is_left)
      left.notes.push_back(fmt::format("{} would take about {} of memory, and the budget is {}", what,
                                       format_size(bytes), format_size(*budget)));
  };
  tell(left.measuring, "the effect of roundings is not measured, and no remedy is tried: that", needed.measuring);
  tell(left.tuning, "weights are not tuned: that", needed.tuning);
  tell(left.storing, "layers in float keep their weights in float: a run of the file without them", needed.proving);
  tell(left.timing, "latency is not measured: the deployed float model", needed.timing);
  return left;
}

}  // namespace detent::remedies
