#include "remedies/trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/failpoint.h"
#include "exec/sweep.h"

namespace detent::remedies {
namespace {

constexpr double kClearlyWorse = 1.26;  // 1 dB
constexpr double kFine = 1e-4;          // 40 dB

// Shows values to those who asked, by their marks, on their way to another receiver.
class Watcher : public data::TapReceiver {
 public:
  Watcher(decltype(TrialOptions::watch) watch, std::vector<std::string> marks, data::TapReceiver& next)
      : watch_(std::move(watch)), marks_(std::move(marks)), next_(next) {}
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor& parallel) override {
    if (watch_ && !marks_.at(tap).empty()) watch_(marks_[tap], tensor);
    next_.receive(tap, tensor, parallel);
  }

 private:
  decltype(TrialOptions::watch) watch_;
  std::vector<std::string> marks_;
  data::TapReceiver& next_;
};

// Each pair of a sample and a trial goes through the sweep like a sample of its own; the float model's run, trial 0,
// comes before those that are compared with it.
class Trials {
 public:
  Trials(const run::Context& context, const TrialModel& model, std::span<const Trial> trials,
         data::SampleSource& source, const TrialOptions& options)
      : context_(context),
        model_(model),
        trials_(trials),
        source_(source),
        options_(options),
        branch_(context.runtime, model.model, model.types, options.cuts, options.spool,
                {.session = {.tuning = exec::SessionMode::lean,
                             .threads = context.threads,
                             .stop = context.stop,
                             .edits = true,
                             .place = context.place},
                 .taps = model.taps,
                 .batch_invariant = false,
                 .name = "trial-",
                 .inputs_of = {}}),
        measured_(measured_values(model)),
        results_(trials.size(), TrialResult{std::vector<run::PairSums>(model.points.size()),
                                            std::vector<run::PairSums>(model.outputs.size())}) {}

  std::vector<TrialResult> run() {
    quantizer_.expect_constants(model_.weights);
    for (std::size_t segment = 0; segment < branch_.segments(); ++segment) {
      run_segment(segment);
      if (segment + 1 < branch_.segments()) branch_.finish(segment);
    }
    return std::move(results_);
  }

 private:
  std::size_t runs_per_sample() const { return trials_.size() + 1; }

  void run_segment(std::size_t segment) {
    const auto names = measured_in(segment);
    auto stage = branch_.load(segment, "trial", names);
    std::vector<std::string> marks;
    for (const auto& tap : stage.taps()) {
      const auto found = model_.mark_of.find(tap);
      marks.push_back(found == model_.mark_of.end() ? "" : found->second);
    }
    quantizer_.expect(marks);
    for (std::size_t tap = 0; tap < stage.taps().size(); ++tap) {
      if (model_.held.contains(stage.taps()[tap])) quantizer_.hold(tap);
    }
    watcher_.emplace(options_.watch, std::move(marks), quantizer_);
    if (segment == 0) {
      source_.rewind();
      source_.skip(options_.samples.skipped);
    } else {
      branch_.prefetch(segment, 0, samples_ * runs_per_sample());
    }
    for (std::size_t s = 0; s < (segment == 0 ? options_.samples.count : samples_); ++s) {
      std::optional<data::Sample> sample;
      if (segment == 0) {
        sample = source_.next();
        if (!sample) break;
        samples_ = s + 1;
      }
      run_sample(segment, s, sample ? std::span<const data::Array>(sample->inputs) : std::span<const data::Array>(),
                 stage, names);
    }
  }

  void run_sample(std::size_t segment, std::size_t s, std::span<const data::Array> inputs, exec::Stage& stage,
                  const std::vector<std::string>& names) {
    auto reference = kept_reference(s, names);
    for (std::size_t t = reference.empty() ? 0 : 1; t < runs_per_sample(); ++t) {
      quantizer_.set_trial(t == 0 ? nullptr : &trials_[t - 1]);
      data::TapReceiver* receiver = &quantizer_;
      if (t == 0) receiver = &*watcher_;
      const std::size_t run = s * runs_per_sample() + t;
      auto values = stage.run(run, inputs, fmt::format("trial {} on sample {}", t, s + 1), receiver);
      if (options_.spool != nullptr) branch_.release(segment, run, true);
      if (t == 0) {
        reference = std::move(values);
        keep_reference(s, names, reference);
      } else {
        for (std::size_t i = 0; i < names.size(); ++i) add(results_[t - 1], names[i], reference[i], values[i]);
      }
      failpoint("accuracy.trial");
      ++done_;
      if (context_.progress)
        context_.progress("accuracy", done_, options_.samples.count * runs_per_sample() * branch_.segments());
    }
  }

  // Of a run in one piece; empty: not kept.
  std::vector<data::Array> kept_reference(std::size_t s, const std::vector<std::string>& names) const {
    std::vector<data::Array> kept;
    if (options_.references == nullptr || options_.spool != nullptr || options_.watch || !model_.held.empty())
      return kept;
    for (const auto& name : names) {
      const auto found = options_.references->find({options_.samples.skipped + s, name});
      if (found == options_.references->end()) return {};
      kept.push_back(found->second);
    }
    return kept;
  }

  void keep_reference(std::size_t s, const std::vector<std::string>& names,
                      const std::vector<data::Array>& values) const {
    if (options_.references == nullptr || !model_.held.empty()) return;
    std::uint64_t bytes = 0;
    for (const auto& [key, value] : *options_.references) bytes += value.bytes.size();
    for (const auto& value : values) bytes += value.bytes.size();
    if (bytes > options_.reference_bytes) return;
    for (std::size_t i = 0; i < names.size(); ++i)
      (*options_.references)[{options_.samples.skipped + s, names[i]}] = values[i];
  }

  static std::vector<std::string> measured_values(const TrialModel& model) {
    auto values = model.points;
    for (const auto& output : model.outputs) {
      if (std::find(values.begin(), values.end(), output) == values.end()) values.push_back(output);
    }
    return values;
  }

  void add(TrialResult& result, const std::string& name, const data::Array& reference,
           const data::Array& values) const {
    run::PairSums pair;
    pair.add(reference, values);
    const auto output = std::find(model_.outputs.begin(), model_.outputs.end(), name);
    if (output != model_.outputs.end())
      result.outputs[static_cast<std::size_t>(output - model_.outputs.begin())] += pair;
    const auto point = std::find(model_.points.begin(), model_.points.end(), name);
    if (point == model_.points.end()) return;
    result.points[static_cast<std::size_t>(point - model_.points.begin())] += pair;
    if (pair.signal > 0) {
      result.log_errors += std::log(std::clamp(pair.noise / pair.signal, kNegligibleError, kLost));
      ++result.pairs;
    }
  }

  // What is measured and made in the segment.
  std::vector<std::string> measured_in(std::size_t segment) const {
    const int begin = segment == 0 ? 0 : options_.cuts[segment - 1];
    const int end =
        segment + 1 == branch_.segments() ? static_cast<int>(model_.model.graph.nodes.size()) : options_.cuts[segment];
    std::vector<std::string> names;
    for (const auto& name : measured_) {
      const int producer = branch_.index().producer(name);
      if (producer >= begin && producer < end) names.push_back(name);
    }
    return names;
  }

  const run::Context& context_;
  const TrialModel& model_;
  std::span<const Trial> trials_;
  data::SampleSource& source_;
  const TrialOptions& options_;
  FakeQuantizer quantizer_;
  std::optional<Watcher> watcher_;  // of a segment
  exec::Branch branch_;
  std::vector<std::string> measured_;
  std::vector<TrialResult> results_;
  std::size_t samples_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace

std::vector<TrialResult> run_trials(const run::Context& context, const TrialModel& model, std::span<const Trial> trials,
                                    data::SampleSource& source, const TrialOptions& options) {
  return Trials(context, model, trials, source, options).run();
}

PointErrors errors_of(const TrialResult& result) {
  PointErrors errors;
  for (const auto& point : result.points) {
    const double error = point.signal > 0 ? point.noise / point.signal : 0;
    // Infinities of the float model stand for no number; those of the integers alone are an error beyond all others.
    errors.push_back(std::isnan(error) ? 0 : std::min(error, kLost));
  }
  return errors;
}

double worst_of(const PointErrors& errors) {
  return errors.empty() ? 0 : *std::max_element(errors.begin(), errors.end());
}

double mean_error_ratio(const PointErrors& before, const PointErrors& after) {
  // Where one point is worse than 40 dB, it does not matter how good another one is beyond that.
  const double floor = worst_of(before) > kFine ? kFine : kNegligibleError;
  double logs = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (after[i] > kClearlyWorse * before[i] && after[i] > kFine) return std::numeric_limits<double>::infinity();
    logs += std::log(std::max(after[i], floor) / std::max(before[i], floor));
  }
  return before.empty() ? 1 : std::exp(logs / static_cast<double>(before.size()));
}

bool is_improved(const PointErrors& before, const PointErrors& after) {
  return mean_error_ratio(before, after) < 1 && worst_of(after) <= worst_of(before);
}

double typical_error_of(const TrialResult& result) {
  return result.pairs > 0 ? std::exp(result.log_errors / static_cast<double>(result.pairs)) : 0;
}

double worst_sqnr_db(const TrialResult& result) {
  double worst = std::numeric_limits<double>::infinity();
  for (const auto& output : result.outputs) {
    if (output.signal > 0) worst = std::min(worst, output.sqnr_db());
  }
  return worst;
}

double worst_cosine(const TrialResult& result) {
  double worst = 1;
  for (const auto& output : result.outputs) {
    if (output.noise > 0) worst = std::min(worst, output.cosine());
  }
  return worst;
}

}  // namespace detent::remedies
