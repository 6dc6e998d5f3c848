#include "remedies/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "base/heap.h"
#include "quantization/emit/qdq.h"
#include "remedies/near_trials.h"
#include "remedies/shared_trials.h"
#include "remedies/stage_memory.h"
#include "run/comparison/candidate.h"
#include "run/comparison/deployed_fidelity.h"
#include "run/comparison/proof.h"
#include "run/comparison/score_command.h"
#include "run/model/finish_integers.h"
#include "run/shared_run.h"
#include "run/sweep_setup.h"

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
// With fewer, an accuracy says little about other samples: so many are judged where there are as many.
constexpr std::size_t kFewSamples = 8;

constexpr const char* kCandidate = "candidate.onnx";

}  // namespace

Evaluator::Evaluator(TrialEnv env) : env_(std::move(env)) {}

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
  references_.clear();
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
  return score(draft,
               quantization::emit_qdq(draft.prepared.model, assignment, options().config, draft.prepared.types).model);
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
                                run::guard_options(options()), {}, &float_runs_);
}

std::vector<TrialResult> Evaluator::run(const Draft& draft, const quantization::AssignedValues& tapped,
                                        std::span<const Trial> trials, TrialSamples samples,
                                        decltype(TrialOptions::watch) watch, const quantization::Placement* placement) {
  const auto& marks = placement != nullptr ? *placement : draft.assignment.placement;
  if (watch) return runner(draft.prepared).run(marks, tapped, trials, samples, std::move(watch), &references_);
  return share_trials(options().resources.ranks, trials, options().stop, [&](std::span<const Trial> some) {
    return runner(draft.prepared).run(marks, tapped, some, samples, {}, &references_);
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
  if (parts_.empty()) parts_ = parts_of(draft.prepared.model, static_types(draft), kParts);
  auto parts = model.map_cuts(parts_);
  parts.front() = 0;  // copies of inputs stand before the first node
  return parts;
}

TrialResult Evaluator::judge(const Draft& draft, const quantization::AssignedValues& tapped,
                             const quantization::Placement& placement, const Trial& trial) {
  return runner(draft.prepared).run(placement, tapped, {&trial, 1}, judging_samples(), {}, &references_).front();
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
  const auto results = run(draft, values, trials, {draft.sensitivities->samples});
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
                                : kJudgingRunsPerSample * all / (2 * kMostAssignments);
  const std::size_t count = std::max(share, std::min(all, kFewSamples));
  return {count, all - count};
}

}  // namespace detent::remedies
