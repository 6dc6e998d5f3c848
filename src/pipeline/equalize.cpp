#include "pipeline/equalize.h"

#include <algorithm>
#include <map>
#include <string>

#include "accuracy/equalization.h"
#include "graph/index.h"
#include "pipeline/trial_runner.h"

namespace detent::pipeline {
namespace {

using accuracy::ChannelExtremes;
using graph::ChannelScaling;

constexpr std::size_t kMostJudging = 4;  // samples
constexpr std::size_t kRunsPerSample = 2;
constexpr double kUneven = 2;         // below, there is nothing to gain
constexpr double kWorthDoing = 0.01;  // share of the error of all candidates
constexpr double kImprovement = 0.5;

struct Candidate {
  ChannelScaling scaling;
  ChannelExtremes extremes;
  calibration::Range range;                // of the scaled value
  std::vector<accuracy::Roundings> plain;  // by each of the ranges
  accuracy::Roundings scaled;
  const accuracy::Roundings* best_plain = nullptr;
};

class Equalizer {
 public:
  Equalizer(Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
            data::SampleSource& source, const EqualizeOptions& options)
      : prepared_(prepared),
        placement_(placement),
        options_(options),
        index_(prepared.model),
        params_(options.params_of(placement, options.ranges.front())),
        runner_options_{options.resources, options.directory, options.threads, options.progress, options.stop},
        runner_(prepared, runtime, source, runner_options_) {}

  Equalization run() {
    for (auto& scaling : accuracy::equalizable(prepared_.model, index_, placement_)) {
      if (params_.contains(scaling.value)) candidates_.push_back({std::move(scaling), {}, {}, {}, {}, nullptr});
    }
    if (candidates_.empty()) return {};
    watch();
    keep_uneven();
    if (candidates_.empty()) return {};
    measure();
    if (candidates_.empty() || !is_better_together()) return {};
    return rewrite();
  }

 private:
  void watch() {
    std::map<std::string, Candidate*> by_value;
    quantization::Params tapped;
    for (auto& candidate : candidates_) {
      const auto& value = candidate.scaling.value;
      by_value[value] = &candidate;
      tapped[value] = params_.at(value);
    }
    const auto add = [&](const std::string& mark, const exec::TensorView& tensor) {
      auto& candidate = *by_value.at(mark);
      candidate.extremes.add({reinterpret_cast<const float*>(tensor.bytes.data()), tensor.bytes.size() / sizeof(float)},
                             tensor.shape, candidate.scaling.last_axis);
    };
    runner_.run(placement_, tapped, {}, options_.samples, add);
  }

  // Those with the most uneven channels, as many as the inferences allow.
  void keep_uneven() {
    std::erase_if(candidates_,
                  [](const auto& c) { return c.extremes.low.empty() || c.extremes.unevenness() < kUneven; });
    const std::size_t most = std::max<std::size_t>(kRunsPerSample * options_.samples / (options_.ranges.size() + 1), 4);
    if (candidates_.size() > most) {
      std::stable_sort(candidates_.begin(), candidates_.end(),
                       [](const auto& a, const auto& b) { return a.extremes.unevenness() > b.extremes.unevenness(); });
      candidates_.resize(most);
    }
    for (const auto& ranges : options_.ranges) {
      const auto params = options_.params_of(placement_, ranges);
      for (auto& candidate : candidates_) add_plain(candidate, params);
    }
    for (auto& candidate : candidates_) make_scaled(candidate);
  }

  // Ranges that give the same integers as one before are no news.
  void add_plain(Candidate& candidate, const quantization::Params& params) {
    const auto found = params.find(candidate.scaling.value);
    if (found == params.end()) return;
    const auto& channel = found->second.channels.front();
    for (const auto& other : candidate.plain) {
      const auto& earlier = other.at(candidate.scaling.value).params.channels.front();
      if (earlier.scale == channel.scale && earlier.zero_point == channel.zero_point) return;
    }
    auto& roundings = candidate.plain.emplace_back();
    roundings[candidate.scaling.value] = {found->second};
    for (const auto& reader : candidate.scaling.readers) {
      if (params.contains(reader.weight)) roundings[reader.weight] = {params.at(reader.weight)};
    }
  }

  void make_scaled(Candidate& candidate) {
    auto& scaling = candidate.scaling;
    scaling.factors = accuracy::equalizing_factors(prepared_.model, index_, scaling, candidate.extremes);
    candidate.range = accuracy::scaled_range(scaling, candidate.extremes);
    const auto params = options_.params_of(placement_, {{scaling.value, candidate.range}});
    candidate.scaled = accuracy::scaled_roundings(prepared_.model, index_, placement_, scaling,
                                                  params.at(scaling.value), options_.config);
  }

  // Keeps those whose error at the model's results falls far enough.
  void measure() {
    std::vector<accuracy::Trial> trials;
    for (const auto& candidate : candidates_) {
      for (const auto& plain : candidate.plain) trials.push_back(accuracy::trial_of(plain));
      trials.push_back(accuracy::trial_of(candidate.scaled));
    }
    const auto results = run(trials, kRunsPerSample * options_.samples / (trials.size() + 1));
    std::vector<EqualizedValue> errors;
    std::size_t at = 0;
    double all = 0;
    for (auto& candidate : candidates_) {
      std::size_t best = at;
      for (std::size_t i = at; i < at + candidate.plain.size(); ++i) {
        if (results[i] < results[best]) best = i;
      }
      candidate.best_plain = &candidate.plain[best - at];
      at += candidate.plain.size();
      errors.push_back({candidate.scaling.value, results[best], results[at++]});
      all += results[best];
    }
    std::vector<Candidate> kept;
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      if (errors[i].error_before < std::max(kNoHarm, kWorthDoing * all) ||
          errors[i].error_after > kImprovement * errors[i].error_before)
        continue;
      done_.values.push_back(errors[i]);
      kept.push_back(std::move(candidates_[i]));
    }
    candidates_ = std::move(kept);
  }

  // What is good for each value alone on a few samples may not be so for all of them on others.
  bool is_better_together() {
    std::vector<accuracy::Trial> trials(2);
    for (const auto& candidate : candidates_) {
      trials[0].merge(accuracy::trial_of(*candidate.best_plain));
      trials[1].merge(accuracy::trial_of(candidate.scaled));
    }
    const auto results = run(trials, options_.samples / 8);
    return results[1] < kImprovement * results[0];
  }

  std::vector<double> run(const std::vector<accuracy::Trial>& trials, std::size_t samples) {
    quantization::Params tapped;
    for (const auto& trial : trials) {
      for (const auto& [mark, rounding] : trial) tapped.try_emplace(mark, rounding->params);
    }
    const auto results = runner_.run(placement_, tapped, trials, std::clamp<std::size_t>(samples, 1, kMostJudging));
    std::vector<double> errors(results.size());
    std::transform(results.begin(), results.end(), errors.begin(), noise_of);
    return errors;
  }

  Equalization rewrite() {
    std::vector<ChannelScaling> scalings;
    for (auto& candidate : candidates_) scalings.push_back(std::move(candidate.scaling));
    const auto scaled =
        graph::scale_channels(prepared_.model, prepared_.types, scalings, file_store(options_.weights, "equalized"));
    for (std::size_t i = 0; i < scaled.size(); ++i) done_.ranges[scaled[i]] = candidates_[i].range;
    return std::move(done_);
  }

  Prepared& prepared_;
  const quantization::Placement& placement_;
  const EqualizeOptions& options_;
  graph::Index index_;
  quantization::Params params_;
  TrialRunnerOptions runner_options_;
  TrialRunner runner_;
  std::vector<Candidate> candidates_;
  Equalization done_;
};

}  // namespace

Equalization equalize(Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
                      data::SampleSource& source, const EqualizeOptions& options) {
  return Equalizer(prepared, placement, runtime, source, options).run();
}

}  // namespace detent::pipeline
