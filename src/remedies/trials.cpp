#include "remedies/trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/failpoint.h"
#include "data/floats.h"
#include "exec/sweep.h"

namespace detent::remedies {
namespace {

// Shows values to those who asked, by their marks.
class Watcher : public data::TapReceiver {
 public:
  Watcher() = default;
  Watcher(decltype(TrialOptions::watch) watch, std::vector<std::string> marks)
      : watch_(std::move(watch)), marks_(std::move(marks)) {}
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor&) override {
    if (!marks_.at(tap).empty()) watch_(marks_[tap], tensor);
  }

 private:
  decltype(TrialOptions::watch) watch_;
  std::vector<std::string> marks_;
};

// Each pair of a sample and a trial goes through the sweep like a sample of its own; the float model's run, trial 0,
// comes before those that are compared with it.
class Trials {
 public:
  Trials(const run::Context& context, const accuracy::TrialModel& model, std::span<const accuracy::Trial> trials,
         data::SampleSource& source, const TrialOptions& options)
      : context_(context),
        model_(model),
        trials_(trials),
        source_(source),
        options_(options),
        branch_(
            context.runtime, model.model, model.types, options.cuts, options.spool,
            {.session = {.tuning = exec::Tuning::lean, .threads = context.threads, .stop = context.stop, .edits = true},
             .taps = model.taps,
             .batch_invariant = false,
             .name = "trial-",
             .inputs_of = {}}),
        results_(trials.size(), TrialResult{std::vector<run::PairSums>(model.points.size())}) {}

  std::vector<TrialResult> run() {
    for (std::size_t segment = 0; segment < branch_.segments(); ++segment) {
      run_segment(segment);
      if (segment + 1 < branch_.segments()) branch_.finish(segment);
    }
    return std::move(results_);
  }

 private:
  std::size_t runs_per_sample() const { return trials_.size() + 1; }

  void run_segment(std::size_t segment) {
    const auto points = points_of(segment);
    std::vector<std::string> names;
    for (const auto point : points) names.push_back(model_.points[point]);
    auto stage = branch_.load(segment, "trial", names);
    std::vector<std::string> marks;
    for (const auto& tap : stage.taps()) {
      const auto found = model_.mark_of.find(tap);
      marks.push_back(found == model_.mark_of.end() ? "" : found->second);
    }
    quantizer_.expect(marks);
    watcher_ = Watcher(options_.watch, std::move(marks));
    if (segment == 0) {
      source_.rewind();
    } else {
      branch_.announce(segment, 0, samples_ * runs_per_sample());
    }
    for (std::size_t s = 0; s < (segment == 0 ? options_.samples.count : samples_); ++s) {
      std::optional<data::Sample> sample;
      if (segment == 0) {
        for (std::size_t i = 0; i < options_.samples.every; ++i) sample = source_.next();
        if (!sample) break;
        samples_ = s + 1;
      }
      run_sample(segment, s, sample ? std::span<const data::Array>(sample->inputs) : std::span<const data::Array>(),
                 stage, points);
    }
  }

  void run_sample(std::size_t segment, std::size_t s, std::span<const data::Array> inputs, exec::Stage& stage,
                  const std::vector<std::size_t>& points) {
    std::vector<data::Array> reference;
    for (std::size_t t = 0; t < runs_per_sample(); ++t) {
      quantizer_.switch_on(t == 0 ? nullptr : &trials_[t - 1]);
      data::TapReceiver* receiver = &quantizer_;
      if (t == 0 && options_.watch) receiver = &watcher_;
      const std::size_t run = s * runs_per_sample() + t;
      auto values = stage.run(run, inputs, fmt::format("trial {} on sample {}", t, s + 1), receiver);
      if (options_.spool != nullptr) branch_.release(segment, run, true);
      if (t == 0) {
        reference = std::move(values);
      } else {
        for (std::size_t i = 0; i < points.size(); ++i) add(results_[t - 1], points[i], reference[i], values[i]);
      }
      failpoint("accuracy.trial");
      ++done_;
      if (context_.progress)
        context_.progress("accuracy", done_, options_.samples.count * runs_per_sample() * branch_.segments());
    }
  }

  void add(TrialResult& result, std::size_t point, const data::Array& reference, const data::Array& values) const {
    run::PairSums pair;
    pair.add(data::floats(reference), data::floats(values), model_.points[point]);
    if (pair.signal > 0) {
      result.log_errors += std::log(std::max(pair.noise / pair.signal, kNoHarm));
      ++result.pairs;
    }
    result.points[point] += pair;
  }

  // Points that are made in the segment.
  std::vector<std::size_t> points_of(std::size_t segment) const {
    const int begin = segment == 0 ? 0 : options_.cuts[segment - 1];
    const int end =
        segment + 1 == branch_.segments() ? static_cast<int>(model_.model.graph.nodes.size()) : options_.cuts[segment];
    std::vector<std::size_t> points;
    for (std::size_t i = 0; i < model_.points.size(); ++i) {
      const int producer = branch_.index().producer(model_.points[i]);
      if (producer >= begin && producer < end) points.push_back(i);
    }
    return points;
  }

  const run::Context& context_;
  const accuracy::TrialModel& model_;
  std::span<const accuracy::Trial> trials_;
  data::SampleSource& source_;
  const TrialOptions& options_;
  accuracy::FakeQuantizer quantizer_;
  Watcher watcher_;
  exec::Branch branch_;
  std::vector<TrialResult> results_;
  std::size_t samples_ = 0;
  std::uint64_t done_ = 0;
};

}  // namespace

std::vector<TrialResult> run_trials(const run::Context& context, const accuracy::TrialModel& model,
                                    std::span<const accuracy::Trial> trials, data::SampleSource& source,
                                    const TrialOptions& options) {
  return Trials(context, model, trials, source, options).run();
}

double noise_of(const TrialResult& result) {
  double sum = 0;
  std::size_t count = 0;
  for (const auto& point : result.points) {
    if (point.signal <= 0) continue;
    sum += point.noise / point.signal;
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

double typical_error_of(const TrialResult& result) {
  return result.pairs > 0 ? std::exp(result.log_errors / static_cast<double>(result.pairs)) : 0;
}

double worst_sqnr_db(const TrialResult& result) {
  double worst = std::numeric_limits<double>::infinity();
  for (const auto& point : result.points) {
    if (point.signal > 0) worst = std::min(worst, point.sqnr_db());
  }
  return worst;
}

double worst_cosine(const TrialResult& result) {
  double worst = 1;
  for (const auto& point : result.points) {
    if (point.noise > 0) worst = std::min(worst, point.cosine());
  }
  return worst;
}

}  // namespace detent::remedies
