// Channel equalization (SmoothQuant): for values whose channels differ so much that one scale does not serve them.
// Each candidate is run with its value and the weights that read it rounded: as they are, with the best of the ranges,
// and with channel ranges equalized. The model is rewritten where that takes away half of an error that matters.
#include "remedies/channel_equalization.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "calibration/methods.h"
#include "graph/index.h"
#include "remedies/remedies.h"
#include "remedies/remedy.h"

namespace detent::remedies {
namespace {

using graph::ChannelScaling;

constexpr std::size_t kMostSamples = 4;
constexpr std::size_t kSamplesForEach = 16;  // of them one, where each is tried
// Of them one, where all together are judged: not those that each was judged on.
constexpr std::size_t kJudgingEvery = 8;
// Trials for each sample that looking for harmful values may take, and the same for what can be done about them.
constexpr double kLookingPerSample = 1;
constexpr double kTryingPerSample = 2;
constexpr std::ptrdiff_t kLeastTrials = 32;
constexpr double kUneven = 2;         // below, there is nothing to gain
constexpr double kWorthDoing = 0.01;  // share of the error of all candidates
constexpr double kImprovement = 0.5;

struct Candidate {
  ChannelScaling scaling;
  ChannelExtremes extremes;
  calibration::Range range;  // as it is
  calibration::Range scaled_range;
  double unevenness = 1;
  double error = 0;              // as it is
  std::vector<Roundings> plain;  // by each of the ranges that says something new, its own first
  Roundings scaled;
  const Roundings* best_plain = nullptr;

  bool is_between_products() const { return scaling.maker && !scaling.readers.empty(); }
  /// Nothing but its own rounding gets better: other ranges have nothing to say.
  bool keeps_range() const { return scaling.readers.empty(); }
};

class Equalization : public Remedy {
 public:
  bool propose(const Draft& draft, Evaluator& evaluator) override {
    draft_ = &draft;
    evaluator_ = &evaluator;
    samples_ = evaluator.samples();
    index_.emplace(draft.prepared.model);
    for (auto& scaling : equalizable(draft.prepared.model, *index_, draft.assignment.placement)) {
      const auto range = draft.proposals.ranges.find(scaling.value);
      if (!values().contains(scaling.value) || range == draft.proposals.ranges.end()) continue;
      Candidate candidate;
      candidate.scaling = std::move(scaling);
      candidate.range = range->second.range;
      candidates_.push_back(std::move(candidate));
    }
    if (candidates_.empty()) return false;
    collect_extremes();
    keep_uneven();
    keep_harmful();
    keep_improved();
    return !candidates_.empty();
  }

  bool is_better(const Draft&, Evaluator&) override {
    std::vector<Trial> trials(2);
    for (const auto& candidate : candidates_) {
      trials[0].merge(trial_of(*candidate.best_plain));
      trials[1].merge(trial_of(candidate.scaled));
    }
    const auto count = std::clamp<std::size_t>(samples_ / kJudgingEvery, 1, kMostSamples);
    const auto results = evaluator_->run(*draft_, rounded_by(trials), trials, {count, samples_ - count});
    const auto before = errors_of(results[0]), after = errors_of(results[1]);
    return mean_error_ratio(before, after) < kImprovement && worst_of(after) <= worst_of(before);
  }

  // Rewrites the model. A value that is read with its channels scaled has a name of its own there.
  void keep(Draft& draft, Evaluator& evaluator) override {
    std::vector<ChannelScaling> scalings;
    for (auto& candidate : candidates_) scalings.push_back(std::move(candidate.scaling));
    const auto names = graph::scale_channels(draft.prepared.model, draft.prepared.types, scalings,
                                             run::file_store(evaluator.env().weights, "equalized"));
    auto& ranges = draft.proposals.ranges;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool is_kept = scalings[i].readers.empty();
      const auto own = ranges.find(draft.result.equalized.emplace_back(std::move(done_[i])).value);
      std::string origin(calibration::method_name(CalibrationMethod::minmax));
      if (is_kept && own != ranges.end()) origin = own->second.origin;
      ranges[names[i]] = {candidates_[i].scaled_range, std::move(origin)};
    }
    auto placement = run::place_qdq_pairs(draft.prepared, evaluator.options().config);
    draft.proposals.constants =
        quantization::scan_weights(draft.prepared.model, placement, evaluator.options().allow_nonfinite);
    draft.assign(std::move(placement), evaluator.options().config);
    draft.sensitivities.reset();
    evaluator.model_changed();
  }

 private:
  void collect_extremes() {
    std::map<std::string, Candidate*> by_value;
    quantization::AssignedValues tapped;
    for (auto& candidate : candidates_) {
      const auto& value = candidate.scaling.value;
      by_value[value] = &candidate;
      tapped[value] = values().at(value);
    }
    const auto add = [&](const std::string& mark, const data::TensorView& tensor) {
      auto& candidate = *by_value.at(mark);
      candidate.extremes.add({reinterpret_cast<const float*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(float)},
                             tensor.shape, candidate.scaling.last_axis);
    };
    evaluator_->run(*draft_, tapped, {}, {samples_}, add);
  }

  // Those with the most uneven channels, as many as the inferences allow; first those that no product makes for
  // another, whose weights have less to give.
  void keep_uneven() {
    std::erase_if(candidates_, [](const auto& c) { return c.extremes.channels() == 0; });
    for (auto& candidate : candidates_) {
      candidate.scaling.factors =
          equalizing_factors(model(), *index_, candidate.scaling, candidate.extremes, candidate.range);
      candidate.unevenness =
          candidate.keeps_range() ? 1 / root_mean_square(candidate.scaling.factors) : candidate.extremes.unevenness();
    }
    std::erase_if(candidates_, [](const auto& c) { return c.unevenness < kUneven; });
    std::stable_sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) {
      return std::pair(a.is_between_products(), -a.unevenness) < std::pair(b.is_between_products(), -b.unevenness);
    });
    const auto most = allowed(kLookingPerSample);
    if (std::ssize(candidates_) > most) candidates_.erase(candidates_.begin() + most, candidates_.end());
    for (auto& candidate : candidates_) add_plain(candidate, values());
  }

  std::ptrdiff_t allowed(double per_sample) const {
    return std::max(static_cast<std::ptrdiff_t>(per_sample * static_cast<double>(samples_)), kLeastTrials);
  }

  static double root_mean_square(const std::vector<float>& values) {
    double sum = 0;
    for (const float v : values) sum += static_cast<double>(v) * v;
    return std::sqrt(sum / static_cast<double>(values.size()));
  }

  // Ranges that give the same integers as one before are no news.
  void add_plain(Candidate& candidate, const quantization::AssignedValues& assigned) {
    const auto found = assigned.find(candidate.scaling.value);
    if (found == assigned.end()) return;
    const auto& channel = found->second.slices.front();
    for (const auto& other : candidate.plain) {
      const auto& earlier = other.at(candidate.scaling.value).params.slices.front();
      if (earlier.scale == channel.scale && earlier.zero_point == channel.zero_point) return;
    }
    auto& roundings = candidate.plain.emplace_back();
    roundings[candidate.scaling.value] = {found->second};
    for (const auto& reader : candidate.scaling.readers) {
      if (assigned.contains(reader.weight)) roundings[reader.weight] = {assigned.at(reader.weight)};
    }
  }

  void make_scaled(Candidate& candidate) {
    const auto& scaling = candidate.scaling;
    candidate.scaled_range = scaled_range(scaling, candidate.extremes, candidate.range);
    const auto& placement = draft_->assignment.placement;
    const auto& config = evaluator_->options().config;
    const auto assigned =
        quantization::assign_activation(*placement.find(scaling.value), {candidate.scaled_range, {}}, config);
    candidate.scaled = scaled_roundings(model(), *index_, placement, scaling, assigned, config);
  }

  // Keeps those whose error at the model's results is worth something, the worst first, as many as the inferences
  // allow.
  void keep_harmful() {
    if (candidates_.empty()) return;
    std::vector<Trial> trials;
    for (const auto& candidate : candidates_) trials.push_back(trial_of(candidate.plain.front()));
    const auto results = run_near(trials);
    double all = 0;
    for (std::size_t i = 0; i < results.size(); ++i) all += candidates_[i].error = worst_error_of(results[i]);
    std::erase_if(candidates_, [&](const auto& c) { return c.error < std::max(kNegligibleError, kWorthDoing * all); });
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const auto& a, const auto& b) { return a.error > b.error; });
    std::ptrdiff_t runs = 0;
    const auto most = allowed(kTryingPerSample);
    const auto is_too_much = [&](const auto& candidate) {
      runs += candidate.keeps_range() ? 1 : 1 + std::ssize(draft_->proposals.others);
      return runs > most;
    };
    candidates_.erase(std::find_if(candidates_.begin(), candidates_.end(), is_too_much), candidates_.end());
    for (const auto& [method, ranges] : draft_->proposals.others) {
      const auto other = assigned_by(ranges);
      for (auto& candidate : candidates_) {
        if (!candidate.keeps_range()) add_plain(candidate, other);
      }
    }
    for (auto& candidate : candidates_) make_scaled(candidate);
  }

  // Keeps those whose error falls far enough below that with the best of the ranges.
  void keep_improved() {
    if (candidates_.empty()) return;
    std::vector<Trial> trials;
    for (const auto& candidate : candidates_) {
      for (const auto& plain : candidate.plain) trials.push_back(trial_of(plain));
      trials.push_back(trial_of(candidate.scaled));
    }
    const auto results = run_near(trials);
    std::vector<Candidate> kept;
    std::size_t at = 0;
    for (auto& candidate : candidates_) {
      const auto first = results.begin() + static_cast<std::ptrdiff_t>(at);
      const auto scaled = first + std::ssize(candidate.plain);
      const auto best = std::min_element(
          first, scaled, [](const auto& a, const auto& b) { return mean_error_ratio(errors_of(b), errors_of(a)) < 1; });
      at += candidate.plain.size() + 1;
      if (mean_error_ratio(errors_of(*best), errors_of(*scaled)) > kImprovement) continue;
      candidate.best_plain = &candidate.plain[static_cast<std::size_t>(best - first)];
      done_.push_back({candidate.scaling.value, worst_error_of(*best), worst_error_of(*scaled)});
      kept.push_back(std::move(candidate));
    }
    candidates_ = std::move(kept);
  }

  quantization::AssignedValues assigned_by(const quantization::ActivationRanges& ranges) const {
    const quantization::Proposals other{ranges, {}, {}, draft_->proposals.constants};
    return quantization::assign(model(), draft_->assignment.placement, other, evaluator_->options().config).values;
  }

  static quantization::AssignedValues rounded_by(const std::vector<Trial>& trials) {
    quantization::AssignedValues tapped;
    for (const auto& trial : trials) {
      for (const auto& [mark, rounding] : trial) tapped.try_emplace(mark, rounding->params);
    }
    return tapped;
  }

  std::vector<TrialResult> run_near(const std::vector<Trial>& trials) {
    const auto count = std::clamp<std::size_t>(samples_ / kSamplesForEach, 1, kMostSamples);
    return evaluator_->run_near(*draft_, rounded_by(trials), trials, {count});
  }

  const onnx::Model& model() const { return draft_->prepared.model; }
  const quantization::AssignedValues& values() const { return draft_->assignment.values; }

  const Draft* draft_ = nullptr;
  Evaluator* evaluator_ = nullptr;
  std::size_t samples_ = 1;  // that may be read, at the beginning of the source
  std::optional<graph::Index> index_;
  std::vector<Candidate> candidates_;
  std::vector<EqualizedValue> done_;  // for each of them
};

}  // namespace

std::unique_ptr<Remedy> equalization() { return std::make_unique<Equalization>(); }

}  // namespace detent::remedies
