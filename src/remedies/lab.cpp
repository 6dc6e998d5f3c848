#include "remedies/lab.h"

#include <algorithm>
#include <utility>

#include "onnx/write.h"
#include "quantization/emit/qdq.h"
#include "run/score_command.h"
#include "run/sweep_setup.h"

namespace detent::remedies {
namespace {

// Inferences that measuring single values may take for each calibration sample, with a target and without, and how
// many samples they run on.
constexpr std::size_t kRunsPerSampleForTarget = 2;
constexpr std::size_t kRunsPerSample = 3;
constexpr std::size_t kMostSamples = 4;
// The same for whole assignments, and how many are judged at the most. Each takes a run of the float model beside its
// own.
constexpr std::size_t kJudgingRunsPerSampleForTarget = 3;
constexpr std::size_t kMostAssignmentsForTarget = 15;
constexpr std::size_t kJudgingRunsPerSample = 2;
constexpr std::size_t kMostAssignments = 4;
// With fewer, an accuracy says little about other samples: so many are judged where there are as many.
constexpr std::size_t kFewSamples = 8;

}  // namespace

Lab::Lab(Means means) : means_(std::move(means)) {}

TrialRunner& Lab::runner(const run::Prepared& prepared) {
  if (!runner_) runner_.emplace(prepared, source(), means_.context());
  return *runner_;
}

run::ByContent& Lab::source() {
  if (!source_) source_.emplace(means_.source, run::ByContentOptions{means_.readable, has_rows_for_samples()});
  return *source_;
}

bool Lab::has_rows_for_samples() {
  means_.source.rewind();
  const auto sample = means_.source.next();
  return sample && run::rows_are_samples(means_.runtime, means_.model, *sample, options().threads);
}

void Lab::model_changed() {
  runner_.reset();
  judged_.reset();
  static_types_.reset();
}

const graph::ValueTypes& Lab::static_types(const Draft& draft) {
  if (!static_types_)
    static_types_ = run::static_types(draft.prepared.types, draft.prepared.model, means_.runtime, source());
  return *static_types_;
}

double Lab::score(const Draft& draft, const quantization::Assignment& assignment) {
  const auto& accuracy = options().accuracy;
  const auto score_of = [&](const std::filesystem::path& model) {
    return accuracy.score ? accuracy.score(model) : run::score_by_command(accuracy.command, model, options().stop);
  };
  if (!float_score_) float_score_ = score_of(options().model);
  const auto path = means_.directory / "candidate.onnx";
  const auto emitted = quantization::emit_qdq(draft.prepared.model, assignment, options().config);
  onnx::write_model(emitted.model, path, {options().external_data_threshold});
  const double found = score_of(path);
  std::filesystem::remove(path);
  return run::share_of_float_score(found, *float_score_);
}

std::vector<TrialResult> Lab::run(const Draft& draft, const quantization::AssignedValues& tapped,
                                  std::span<const accuracy::Trial> trials, TrialSamples samples,
                                  decltype(TrialOptions::watch) watch, const quantization::Placement* placement) {
  const auto& marks = placement != nullptr ? *placement : draft.assignment.placement;
  return runner(draft.prepared).run(marks, tapped, trials, samples, std::move(watch));
}

TrialResult Lab::judge(const Draft& draft, const quantization::Assignment& assignment) {
  const auto roundings = accuracy::roundings_of(assignment.values);
  const accuracy::Trial all = accuracy::trial_of(roundings);
  return runner(draft.prepared).run(assignment.placement, assignment.values, {&all, 1}, judging_samples()).front();
}

const TrialResult& Lab::judged(const Draft& draft) {
  if (!judged_) judged_ = judge(draft, draft.assignment);
  return *judged_;
}

Sensitivities Lab::measure(const Draft& draft) {
  const auto& values = draft.assignment.values;
  const auto roundings = accuracy::roundings_of(values);
  Sensitivities measured;
  for (const auto& mark : draft.assignment.placement.marks) {
    if (values.contains(mark.value)) measured.values.push_back(mark.value);
  }
  const auto& all = measured.values;
  const std::size_t runs = options().accuracy.target ? kRunsPerSampleForTarget : kRunsPerSample;
  const std::size_t allowed = std::max<std::size_t>(runs * samples(), 8);
  const std::size_t group = (all.size() + allowed - 1) / allowed;
  std::vector<accuracy::Trial> trials;
  for (std::size_t at = 0; at < all.size(); ++at) {
    if (at % group == 0) trials.emplace_back();
    trials.back()[all[at]] = &roundings.at(all[at]);
  }
  // Beside the trials, the float model runs on each sample.
  measured.samples = std::clamp<std::size_t>(allowed / (trials.size() + 1), 1, kMostSamples);
  measured.samples = std::min(measured.samples, samples());
  const auto results = run(draft, values, trials, {measured.samples});
  for (std::size_t t = 0; t < trials.size(); ++t) {
    auto share = errors_of(results[t]);
    for (double& error : share) error /= static_cast<double>(trials[t].size());
    for (const auto& [value, rounding] : trials[t]) measured.errors[value] = share;
  }
  measured.each_alone = group == 1;
  return measured;
}

TrialSamples Lab::judging_samples() {
  const std::size_t all = samples();
  const std::size_t share = options().accuracy.target
                                ? kJudgingRunsPerSampleForTarget * all / (2 * kMostAssignmentsForTarget)
                                : kJudgingRunsPerSample * all / (2 * kMostAssignments);
  const std::size_t count = std::max(share, std::min(all, kFewSamples));
  return {count, all - count};
}

}  // namespace detent::remedies
