#include "remedies/near_trials.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/failpoint.h"
#include "data/floats.h"
#include "exec/emit.h"
#include "graph/bodies.h"
#include "graph/segment.h"
#include "graph/work.h"

namespace detent::remedies {
namespace {

using Values = std::unordered_map<std::string, data::Array>;

constexpr int kNoCut = std::numeric_limits<int>::max();

// How many values cross each position; kNoCut inside of bodies, and where one of them is no tensor of numbers.
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
      if (type != onnx::DataType::undefined && type != onnx::DataType::string) continue;
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

}  // namespace detent::remedies
