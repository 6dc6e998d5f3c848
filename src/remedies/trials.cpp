#include "remedies/trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "base/paths.h"
#include "base/process.h"
#include "exec/emit.h"
#include "exec/sweep.h"
#include "graph/execution.h"
#include "graph/index.h"
#include "graph/segment.h"
#include "remedies/evaluator.h"
#include "shim/shared_work.h"

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
        if (keeps_references()) options_.references->keep(key_of(s, names), reference);
      } else {
        for (std::size_t i = 0; i < names.size(); ++i) add(results_[t - 1], names[i], reference[i], values[i]);
      }
      failpoint("accuracy.trial");
      ++done_;
      if (context_.progress)
        context_.progress("accuracy", done_, options_.samples.count * runs_per_sample() * branch_.segments());
    }
  }

  // Of these values of a sample.
  std::string key_of(std::size_t s, const std::vector<std::string>& names) const {
    Hasher hasher;
    for (const auto& name : names) hasher.add(name + '\n');
    hasher.add(static_cast<std::uint64_t>(options_.samples.skipped + s));
    return hasher.result().text();
  }

  bool keeps_references() const {
    return options_.references != nullptr && options_.spool == nullptr && model_.held.empty();
  }

  // Empty: not kept.
  std::vector<data::Array> kept_reference(std::size_t s, const std::vector<std::string>& names) const {
    const bool is_kept = keeps_references() && !options_.watch && options_.references->holds(key_of(s, names));
    return is_kept ? options_.references->get(key_of(s, names)) : std::vector<data::Array>();
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

// One sweep serves all of them: each segment is loaded once. Results depend neither on cuts nor on the order of trials.
std::vector<TrialResult> run_trials(const run::Context& context, const TrialModel& model, std::span<const Trial> trials,
                                    data::SampleSource& source, const TrialOptions& options) {
  return Trials(context, model, trials, source, options).run();
}

}  // namespace

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

std::vector<TrialResult> TrialRunner::run(const quantization::Placement& placement,
                                          const quantization::AssignedValues& values, std::span<const Trial> trials,
                                          TrialSamples samples, decltype(TrialOptions::watch) watch,
                                          run::FloatResults* references) {
  const auto model = make_trial_model(prepared_.model, prepared_.types, placement, values);
  run::Context context = context_;
  context.directory /= "trials";
  paths::remove(context.directory);  // of an interrupted run, whose trials may have been others
  paths::make_folder(context.directory);
  plan_sweep(placement, context);
  trim_heap();  // of the sessions before
  auto results = run_trials(context, model, trials, source_,
                            {.samples = samples,
                             .cuts = model.map_cuts(sweep_->cuts),
                             .spool = sweep_->spool.get(),
                             .references = references,
                             .watch = std::move(watch)});
  sweep_->spool.reset();
  paths::remove(context.directory);
  return results;
}

void TrialRunner::plan_sweep(const quantization::Placement& placement, const run::Context& context) {
  if (!sweep_) {
    const planning::Circumstances circumstances{.observed = placement.to_observe().size(),
                                                .histograms = false,
                                                .threads = thread_count(context.threads),
                                                .beside = trial_memory(prepared_.model, placement),
                                                .weights_stay = true};
    sweep_ = run::set_up_sweep(context, prepared_, placement, source_, circumstances);
  } else if (!sweep_->cuts.empty()) {
    sweep_->spool = run::make_spool(context, sweep_->plan);
  }
}

namespace {

using Values = std::unordered_map<std::string, data::Array>;

constexpr int kNoCut = std::numeric_limits<int>::max();
// That a value may take which crosses a cut: it stays in memory for each of the samples.
constexpr std::uint64_t kMostCrossing = std::uint64_t{20} << 20;

// How many values cross each position; kNoCut inside of bodies, and where one of them is large or no tensor of numbers.
std::vector<int> crossings(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types) {
  const auto count = static_cast<int>(model.graph.nodes.size());
  std::vector<int> change(static_cast<std::size_t>(count) + 2), others = change;
  for (int n = 0; n < count; ++n) {
    for (const auto& name : model.graph.nodes[static_cast<std::size_t>(n)].outputs()) {
      const auto readers = index.consumers(name);
      const int last = readers.empty() ? n : *std::max_element(readers.begin(), readers.end());
      ++change[static_cast<std::size_t>(n) + 1];
      --change[static_cast<std::size_t>(last) + 1];
      const auto type = graph::type_of(model, types, name);
      const bool is_large = graph::static_bytes(types, name).value_or(0) > kMostCrossing;
      if (type != onnx::DataType::undefined && type != onnx::DataType::string && !is_large) continue;
      ++others[static_cast<std::size_t>(n) + 1];
      --others[static_cast<std::size_t>(last) + 1];
    }
  }
  for (std::size_t i = 1; i < change.size(); ++i) {
    change[i] += change[i - 1];
    others[i] += others[i - 1];
  }
  const auto inside = graph::cuts_inside_bodies(model);
  for (std::size_t i = 0; i < change.size(); ++i) {
    if (others[i] > 0 || (i < inside.size() && inside[i])) change[i] = kNoCut;
  }
  return change;
}

// Where what a tap shows is made or, of a constant, first read.
int position_of_value(const graph::Index& index, const std::string& value) {
  if (const int producer = index.producer(value); producer != graph::kNone) return producer;
  const auto readers = index.consumers(value);
  if (index.initializer(value) == graph::kNone || readers.empty()) return 0;
  return *std::min_element(readers.begin(), readers.end());
}

std::size_t part_at(const std::vector<int>& parts, int position) {
  return static_cast<std::size_t>(std::upper_bound(parts.begin() + 1, parts.end() - 1, position) - parts.begin()) - 1;
}

// Values whose shape is another than the model states.
std::unordered_set<std::string> of_other_shapes(const graph::ValueTypes& types, const std::vector<Values>& samples) {
  std::unordered_set<std::string> names;
  for (const auto& sample : samples) {
    for (const auto& [name, value] : sample) {
      const auto found = types.find(name);
      if (found != types.end() && graph::contradicts(value.shape, found->second.shape)) names.insert(name);
    }
  }
  return names;
}

// Two parts that follow each other, or the last one alone.
class Window {
 public:
  Window(const run::Context& context, const TrialModel& model, const graph::Index& index, int begin, int middle,
         int end, const std::vector<std::string>& taps, const std::vector<Values>& samples) {
    const auto all = static_cast<int>(model.model.graph.nodes.size());
    std::vector<int> cuts;
    if (begin > 0) cuts.push_back(begin);
    if (end < all) cuts.push_back(end);
    const auto chain = graph::make_chain(model.model, index, cuts);
    const auto& segment = chain.segments[begin > 0 ? 1 : 0];
    const auto made_here = [&](const std::string& value) {
      const int producer = index.producer(value);
      return producer != graph::kNone && producer >= begin && producer < end;
    };
    measured_ = segment.outputs;
    measured_.insert(measured_.end(), model.points.begin(), model.points.end());
    std::erase_if(measured_, [&](const auto& value) {
      return !made_here(value) || model.apart.contains(value) ||
             !data::holds_floats(graph::type_of(model.model, model.types, value));
    });
    std::sort(measured_.begin(), measured_.end());
    measured_.erase(std::unique(measured_.begin(), measured_.end()), measured_.end());
    if (middle < all) needed_ = graph::make_chain(model.model, index, {middle}).segments[1].inputs;
    outputs_ = measured_;
    for (const auto& value : needed_) {
      if (made_here(value) && std::find(outputs_.begin(), outputs_.end(), value) == outputs_.end())
        outputs_.push_back(value);
    }
    auto part = graph::segment_model(model.model, index, model.types, segment, {taps.begin(), taps.end()},
                                     of_other_shapes(model.types, samples));
    if (begin == 0) part.graph.inputs = model.model.graph.inputs;
    inputs_ = segment.inputs;
    if (begin == 0) {
      inputs_.clear();
      for (const auto& input : model.model.graph.inputs) {
        if (index.initializer(input.name) == graph::kNone) inputs_.push_back(input.name);
      }
    }
    exec::SessionOptions options{exec::SessionMode::lean, context.threads, context.stop};
    options.edits = true;
    options.place = context.place;
    session_.emplace(context.runtime, exec::emit(part, {taps, outputs_, {}}), "a part of the model", options);
  }

  const std::vector<std::string>& measured() const { return measured_; }

  /// What was measured; `values` hold what the part reads.
  std::vector<data::Array> run(const Values& values, const std::string& where, data::TapReceiver& receiver) {
    std::vector<data::Array> inputs;
    for (const auto& name : inputs_) {
      const auto found = values.find(name);
      if (found == values.end()) throw internal_error(fmt::format("value '{}' is missing in a part", name));
      inputs.push_back(found->second);
    }
    return session_->run(inputs, where, &receiver);
  }

  /// `values` become what the next window reads, by the results of run().
  void go_on(Values& values, const std::vector<data::Array>& results) const {
    Values next;
    for (const auto& name : needed_) {
      const auto found = std::find(outputs_.begin(), outputs_.end(), name);
      next[name] =
          found == outputs_.end() ? values.at(name) : results[static_cast<std::size_t>(found - outputs_.begin())];
    }
    values = std::move(next);
  }

 private:
  std::vector<std::string> inputs_, outputs_, measured_, needed_;
  std::optional<exec::Session> session_;
};

class NearTrials {
 public:
  NearTrials(const run::Context& context, const TrialModel& model, const std::vector<int>& parts,
             std::span<const Trial> trials)
      : context_(context), model_(model), index_(model.model), parts_(parts), trials_(trials), results_(trials.size()) {
    for (const auto& trial : trials) begins_.push_back(part_of(model, index_, parts, trial));
  }

  std::vector<TrialResult> run(data::SampleSource& source, TrialSamples samples) {
    read(source, samples);
    quantizer_.expect_constants(model_.weights);
    const std::size_t last = parts_.size() - 2;
    for (std::size_t part = 0; part <= last; ++part) {
      std::vector<std::size_t> here;
      for (std::size_t t = 0; t < trials_.size(); ++t) {
        if (begins_[t] == part) here.push_back(t);
      }
      const bool more = std::any_of(begins_.begin(), begins_.end(), [&](auto begin) { return begin > part; });
      if (!here.empty() || more) run_window(part, here);
    }
    return std::move(results_);
  }

 private:
  void read(data::SampleSource& source, TrialSamples samples) {
    source.rewind();
    source.skip(samples.skipped);
    for (std::size_t s = 0; s < samples.count; ++s) {
      auto sample = source.next();
      if (!sample) break;
      auto& values = samples_.emplace_back();
      std::size_t i = 0;
      for (const auto& input : model_.model.graph.inputs) {
        if (index_.initializer(input.name) == graph::kNone) values[input.name] = std::move(sample->inputs[i++]);
      }
    }
  }

  void run_window(std::size_t part, const std::vector<std::size_t>& here) {
    const int begin = parts_[part], middle = parts_[part + 1];
    const int end = here.empty() ? middle : parts_[std::min(part + 2, parts_.size() - 1)];
    std::vector<std::string> taps, marks;
    for (const auto& tap : model_.taps) {
      const auto mark = model_.mark_of.find(tap);
      const int place = position_of_value(index_, tap);
      const bool held = model_.held.contains(tap);
      if ((mark == model_.mark_of.end() && !held) || place < begin || place >= end) continue;
      const bool wanted =
          held || std::any_of(here.begin(), here.end(), [&](auto t) { return trials_[t].contains(mark->second); });
      if (!wanted) continue;
      taps.push_back(tap);
      marks.push_back(held ? "" : mark->second);
    }
    Window window(context_, model_, index_, begin, middle, end, taps, samples_);
    quantizer_.expect(std::move(marks));
    for (std::size_t tap = 0; tap < taps.size(); ++tap) {
      if (model_.held.contains(taps[tap])) quantizer_.hold(tap);
    }
    for (auto& values : samples_) {
      quantizer_.set_trial(nullptr);
      const auto reference = window.run(values, "a sample", quantizer_);
      for (const auto t : here) {
        quantizer_.set_trial(&trials_[t]);
        add(results_[t], window.measured(), reference, window.run(values, "a trial", quantizer_));
        failpoint("accuracy.trial");
        if (context_.progress) context_.progress("accuracy", ++done_, trials_.size() * samples_.size());
      }
      window.go_on(values, reference);
    }
  }

  static void add(TrialResult& result, const std::vector<std::string>& names, const std::vector<data::Array>& reference,
                  const std::vector<data::Array>& values) {
    result.points.resize(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      run::PairSums pair;
      pair.add(reference[i], values[i]);
      result.points[i] += pair;
    }
  }

  const run::Context& context_;
  const TrialModel& model_;
  graph::Index index_;
  const std::vector<int>& parts_;
  std::span<const Trial> trials_;
  std::vector<std::size_t> begins_;
  std::vector<TrialResult> results_;
  std::vector<Values> samples_;  // of each, what crosses the cut before the window
  FakeQuantizer quantizer_;
  std::uint64_t done_ = 0;
};

}  // namespace

std::vector<int> parts_of(const onnx::Model& model, const graph::ValueTypes& static_types, std::size_t most) {
  const graph::Index index(model);
  std::vector<double> work{0};  // of the nodes before each position
  for (const auto& node : model.graph.nodes) {
    const auto of_node = graph::work_of(model, index, static_types, node);
    work.push_back(work.back() + 1 + (of_node ? static_cast<double>(of_node->macs) : 0));
  }
  const auto crossing = crossings(model, index, static_types);
  const auto position_of = [&](double share) {
    return std::lower_bound(work.begin(), work.end(), share * work.back()) - work.begin();
  };
  std::vector<int> parts{0};
  const auto step = 1 / static_cast<double>(most);
  for (std::size_t i = 1; i < most; ++i) {
    const double share = step * static_cast<double>(i);
    const auto first = std::max<std::ptrdiff_t>(position_of(share - step / 3), parts.back() + 1);
    const auto end = std::min<std::ptrdiff_t>(position_of(share + step / 3) + 1, std::ssize(work) - 1);
    if (first >= end) continue;
    const auto best = std::min_element(crossing.begin() + first, crossing.begin() + end);
    if (*best != kNoCut) parts.push_back(static_cast<int>(best - crossing.begin()));
  }
  parts.push_back(static_cast<int>(model.graph.nodes.size()));
  return parts;
}

std::size_t part_of(const TrialModel& model, const graph::Index& index, const std::vector<int>& parts,
                    const Trial& trial) {
  int first = std::numeric_limits<int>::max();
  for (const auto& tap : model.taps) {
    const auto mark = model.mark_of.find(tap);
    if (mark != model.mark_of.end() && trial.contains(mark->second))
      first = std::min(first, position_of_value(index, tap));
  }
  return first == std::numeric_limits<int>::max() ? 0 : part_at(parts, first);
}

std::vector<TrialResult> run_near_trials(const run::Context& context, const TrialModel& model,
                                         const std::vector<int>& parts, std::span<const Trial> trials,
                                         data::SampleSource& source, TrialSamples samples) {
  return NearTrials(context, model, parts, trials).run(source, samples);
}

namespace {

// All ranks run the same program on the same kind of machine, so that values go as they lie in memory: of a result
// this, then its sums.
struct Head {
  std::size_t points = 0, outputs = 0;
  double log_errors = 0;
  std::size_t pairs = 0;
};

std::vector<std::byte> written(const std::vector<TrialResult>& results) {
  std::vector<std::byte> all;
  const auto add = [&](std::span<const std::byte> more) { all.insert(all.end(), more.begin(), more.end()); };
  for (const auto& result : results) {
    const Head head{result.points.size(), result.outputs.size(), result.log_errors, result.pairs};
    add(std::as_bytes(std::span(&head, 1)));
    add(std::as_bytes(std::span(result.points)));
    add(std::as_bytes(std::span(result.outputs)));
  }
  return all;
}

// The first result of what a rank sent, which is cut off.
TrialResult read_result(std::size_t rank, std::span<const std::byte>& left) {
  static_assert(std::is_trivially_copyable_v<run::PairSums>);
  const auto require = [&](bool holds) {
    if (!holds) throw shim::unexpected_message(static_cast<int>(rank), "results of trials that break off");
  };
  const auto read = [&](std::span<std::byte> to) {
    require(to.size() <= left.size());
    if (!to.empty()) std::memcpy(to.data(), left.data(), to.size());
    left = left.subspan(to.size());
  };
  Head head;
  read(std::as_writable_bytes(std::span(&head, 1)));
  const std::size_t most = left.size() / sizeof(run::PairSums);
  require(head.points <= most && head.outputs <= most);
  TrialResult result{std::vector<run::PairSums>(head.points), std::vector<run::PairSums>(head.outputs), head.log_errors,
                     head.pairs};
  read(std::as_writable_bytes(std::span(result.points)));
  read(std::as_writable_bytes(std::span(result.outputs)));
  return result;
}

}  // namespace

std::vector<TrialResult> share_trials(
    shim::Ranks* ranks, std::span<const Trial> trials, const std::stop_token& stop,
    const std::function<std::vector<TrialResult>(std::span<const Trial> trials)>& run) {
  if (shim::size_of(ranks) == 1 || trials.size() < 2) return run(trials);
  const auto [first, end] = shim::share_of(ranks, trials.size());
  const auto mine = first < end ? run(trials.subspan(first, end - first)) : std::vector<TrialResult>();
  std::vector<TrialResult> all;
  const auto of_all = shim::all_gather(ranks, written(mine), stop);
  for (std::size_t rank = 0; rank < of_all.size(); ++rank) {
    for (std::span<const std::byte> left = of_all[rank]; !left.empty();) all.push_back(read_result(rank, left));
  }
  if (all.size() != trials.size())
    throw device_error(fmt::format("the ranks sent results of {} trials, not of {}", all.size(), trials.size()));
  return all;
}

}  // namespace detent::remedies
