#include "run/model/speed_trials.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/numbers.h"
#include "base/process.h"
#include "exec/guarded_session.h"
#include "exec/timing.h"
#include "graph/traits.h"
#include "quantization/assignment.h"
#include "quantization/emit/dynamic.h"
#include "quantization/emit/emitters.h"
#include "quantization/placement/value_kinds.h"
#include "quantization/weight_operators.h"
#include "run/comparison/proof.h"
#include "run/model/finish.h"

namespace detent::run {
namespace {

constexpr int kMostRounds = 3;
constexpr std::size_t kRuns = 20;
constexpr double kSecondsEach = 0.25;  // of runs of one model, but three at the least
// A gain smaller than this share of the time in float is not told from noise.
constexpr double kLeastGain = 0.03;
constexpr double kCall = 5e-7;          // that the runtime takes to call a kernel, about
constexpr double kSecondsOfNone = 1e5;  // of integers that the runtime does not run
constexpr double kEvent = 2e-6;         // that the profile of a kernel takes, about
constexpr double kLittle = 0.01;
constexpr double kLeastFactor = 0.25, kMostFactor = 8;  // by which conversions may differ from those of one operator

bool is_conversion(const exec::Kernel& kernel) {
  return kernel.op_type == "QuantizeLinear" || kernel.op_type == "DequantizeLinear";
}

exec::KernelTimesOptions timing(const std::filesystem::path& scratch, const std::stop_token& stop) {
  return {.threads = 1, .runs = kRuns, .seconds = kSecondsEach, .fastest = true, .directory = scratch, .stop = stop};
}

// The kernels' times, and that of a run: without the profile where this would count.
std::vector<exec::Kernel> timed(const onnx::Model& model, const exec::Runtime& runtime,
                                const std::vector<std::vector<data::Array>>& samples,
                                const std::filesystem::path& scratch, const std::stop_token& stop, double& run) {
  auto options = timing(scratch, stop);
  options.run = &run;
  auto kernels = exec::kernel_times(runtime, model, samples, options);
  trim_heap();
  if (kEvent * static_cast<double>(kernels.size()) < kLittle * run) return kernels;
  run = exec::run_seconds(runtime, model, samples, timing(scratch, stop));
  trim_heap();
  return kernels;
}

/// What a model took.
struct Taken {
  double seconds = 0;
  std::vector<double> of_nodes;  // of the nodes of the prepared model; what is fused counts for its product
  double conversions = 0;        // and changes of layout: all that makes no value of a node
};

class Trials {
 public:
  Trials(const SpeedTrials& trials, const speed::TimesOf& times, const speed::SpeedGoal& goal)
      : trials_(trials), goal_(goal), nodes_(trials.subject.model.graph.nodes), times_(nodes_.size()) {
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (!trials.candidates[n]) continue;
      all_.push_back(n);
      const auto* known = times(n);
      if (known != nullptr) times_[n] = *known;
    }
  }

  speed::FasterInFloat run() {
    const auto first = choice();
    try_in_float();
    try_choice({});
    auto next = choice();
    for (int round = 0; round < kMostRounds && !tried_.contains(next); ++round) {
      try_choice(next);
      next = choice();
    }
    if (!tried_.contains(first)) try_choice(first);
    try_dynamic_scales();
    return best();
  }

 private:
  using Nodes = std::vector<std::size_t>;  // in float, ascending

  speed::TimesOf known_times() const {
    return [this](std::size_t n) { return times_[n] ? &*times_[n] : nullptr; };
  }

  Nodes choice() {
    found_ = speed::faster_in_float(trials_.subject, trials_.candidates, known_times(), goal_);
    return found_.nodes;
  }

  void try_in_float() {
    const auto taken = time(with_integers(all_));
    in_float_ = taken.seconds;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (times_[n]) times_[n]->in_float = taken.of_nodes[n];
    }
    tried_[all_] = taken.seconds;
  }

  void try_dynamic_scales() {
    auto config = trials_.options.config;
    config.activations = Activations::dynamic;
    if (quantization::dynamic_nodes(trials_.subject.model, config).empty()) return;
    const auto taken = time_if_it_runs(quantization::make_dynamic(trials_.subject.model, config, true).model);
    if (taken) dynamic_ = taken->seconds;
  }

  void try_choice(const Nodes& in_float) {
    if (tried_.contains(in_float)) return;
    const auto timed = time_if_it_runs(with_integers(in_float));
    tried_[in_float] = timed ? timed->seconds : std::numeric_limits<double>::infinity();
    if (!timed) return;
    const auto& taken = *timed;
    double kernels = 0;  // as they were expected
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (!times_[n]) continue;
      const bool stays = std::binary_search(in_float.begin(), in_float.end(), n);
      (stays ? times_[n]->in_float : times_[n]->in_integers) = taken.of_nodes[n];
      kernels += taken.of_nodes[n];
    }
    if (in_float.empty()) return;  // the conversions of a part are what matters
    const double expected = found_.seconds - kernels;
    if (expected <= 0 || taken.conversions <= 0) return;
    const double factor = std::clamp(taken.conversions / expected, kLeastFactor, kMostFactor);
    for (auto& times : times_) {
      if (!times) continue;
      for (double* part : {&times->quantize, &times->dequantize, &times->into_blocks, &times->out_of_blocks})
        *part *= factor;
    }
  }

  speed::FasterInFloat best() const {
    const Nodes* best = nullptr;
    double least = 0;
    for (const auto& [in_float, seconds] : tried_) {
      const double cost = cost_of(in_float, seconds);
      if (best != nullptr && cost >= least) continue;
      best = &in_float;
      least = cost;
    }
    auto added = speed::added_in_float(trials_.subject, trials_.candidates, *best, known_times());
    const double on_integers = std::min(tried_.at({}), kSecondsOfNone);
    return {*best, tried_.at(*best), on_integers, in_float_, dynamic_, std::move(added)};
  }

  // Integers have to be so much faster, less what their smaller size is worth.
  double cost_of(const Nodes& in_float, double seconds) const {
    const bool for_accuracy = goal_.optimize_for == OptimizeFor::accuracy;
    const bool is_float = in_float.size() == all_.size();
    const double margin = is_float ? 1 - kLeastGain : for_accuracy ? speed::kAccuracyMargin : 1;
    double worth = 0, all = 0;
    for (const auto n : all_) {
      const double bytes = speed::weight_bytes(trials_.subject, n);
      all += bytes;
      worth += std::binary_search(in_float.begin(), in_float.end(), n) ? bytes : 0;
    }
    if (for_accuracy || all <= 0) return margin * seconds;
    return margin * seconds + goal_.size_worth / 100 * in_float_ * worth / all;
  }

  // A Relu ends within the operator before it only where its range begins at 0.
  calibration::Range made_up_range(const std::string& value) const {
    const int producer = trials_.subject.index.producer(value);
    const bool clips =
        producer != graph::kNone && graph::has_trait(nodes_[static_cast<std::size_t>(producer)], graph::Trait::clips);
    return clips ? calibration::Range{0, 1} : calibration::Range{-1, 1};
  }

  onnx::Model with_integers(const Nodes& in_float) const {
    const auto& model = trials_.subject.model;
    const auto& config = trials_.options.config;
    auto placement = place_qdq_pairs(trials_.prepared, config, {AccuracyFallback::float32, in_float});
    quantization::Proposals proposals;
    for (const auto& value : placement.to_observe()) {
      const auto known = trials_.ranges.find(value);
      proposals.ranges[value] = {known == trials_.ranges.end() ? made_up_range(value) : known->second, {}};
    }
    for (const auto& [value, range] : placement.fixed_ranges) proposals.ranges[value] = {range, {}};
    proposals.constants = quantization::scan_weights(model, placement, true);
    const auto assignment = quantization::assign(model, std::move(placement), proposals, config);
    auto emitted = quantization::emit_qdq({model, trials_.prepared.types}, assignment);
    finish_integers(trials_.prepared, trials_.options, emitted.model);
    return std::move(emitted.model);
  }

  // Nothing for a form that the runtime refuses, or dies of.
  std::optional<Taken> time_if_it_runs(const onnx::Model& model) const {
    try {
      return measure_candidate(model, trials_.scratch / "form.onnx", trials_.options, [&](const auto& file) {
        exec::check_survives(trials_.runtime, file, guard_options(trials_.options));
        return time(model);
      });
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::bad_input && e.kind() != ErrorKind::device) throw;
      return std::nullopt;
    }
  }

  Taken time(const onnx::Model& model) const {
    double run = 0;
    const auto kernels = timed(model, trials_.runtime, trials_.samples, trials_.scratch, trials_.options.stop, run);
    Taken taken{run, std::vector<double>(nodes_.size()), 0};
    const graph::Index index(model);
    std::vector<bool> has_kernel(nodes_.size());
    std::vector<std::pair<std::size_t, double>> of_nodes;
    for (const auto& kernel : kernels) {
      const int node = is_conversion(kernel) ? graph::kNone : node_of(kernel, model, index);
      if (node == graph::kNone) {
        taken.conversions += kernel.seconds;
        continue;
      }
      has_kernel[static_cast<std::size_t>(node)] = true;
      of_nodes.emplace_back(static_cast<std::size_t>(node), kernel.seconds);
    }
    for (const auto& [node, seconds] : of_nodes) taken.of_nodes[product_within(node, has_kernel)] += seconds;
    return taken;
  }

  // The node of the prepared model whose value the kernel makes, as a float or as an integer; kNone: none.
  int node_of(const exec::Kernel& kernel, const onnx::Model& model, const graph::Index& index) const {
    for (std::string value : kernel.outputs) {
      for (int producer = index.producer(value); producer != graph::kNone; producer = index.producer(value)) {
        const auto& node = model.graph.nodes[static_cast<std::size_t>(producer)];
        if (!node.is("QuantizeLinear") && !node.is("DequantizeLinear")) break;
        value = node.inputs()[0];
      }
      if (const int found = trials_.subject.index.producer(value); found != graph::kNone) return found;
    }
    return graph::kNone;
  }

  // What runs within one kernel counts for its product: the first on the way back that has no kernel of its own.
  std::size_t product_within(std::size_t node, const std::vector<bool>& has_kernel) const {
    constexpr int kLongest = 8;  // operators that the runtime fuses in a row
    auto at = node;
    for (int i = 0; i < kLongest; ++i) {
      if (times_[at] && graph::is_product(nodes_[at])) return at;
      std::optional<std::size_t> before;
      for (const auto& value : nodes_[at].inputs()) {
        const int producer = trials_.subject.index.producer(value);
        if (producer != graph::kNone && !has_kernel[static_cast<std::size_t>(producer)])
          before = static_cast<std::size_t>(producer);
      }
      if (!before) break;
      at = *before;
    }
    return node;
  }

  const SpeedTrials& trials_;
  const speed::SpeedGoal& goal_;
  const std::vector<onnx::Node>& nodes_;
  Nodes all_;  // candidates
  std::vector<std::optional<speed::KernelTimes>> times_;
  speed::FasterInFloat found_;  // the last choice
  double in_float_ = 0, dynamic_ = 0;
  std::map<Nodes, double> tried_;  // seconds
};

}  // namespace

speed::FasterInFloat choose_by_trials(const SpeedTrials& trials, const speed::TimesOf& times,
                                      const speed::SpeedGoal& goal) {
  return Trials(trials, times, goal).run();
}

double seconds_of_model(const onnx::Model& model, const exec::Runtime& runtime,
                        const std::vector<std::vector<data::Array>>& samples, const std::stop_token& stop) {
  const double run = exec::run_seconds(runtime, model, samples, timing({}, stop));
  trim_heap();
  return run;
}

namespace {

void add_node(Hasher& hasher, const onnx::Node& node) {
  hasher.add(fmt::format("{} {}({}) {}\n", node.id(), node.op_type(), fmt::join(node.inputs(), " "),
                         fmt::join(node.outputs(), " ")));
}

}  // namespace

std::string key_of_model(const onnx::Model& model, const std::vector<data::Array>& sample) {
  Hasher hasher;
  for (const auto& array : sample) hasher.add(fmt::format("[{}]\n", fmt::join(array.shape, "x")));
  for (const auto& node : model.graph.nodes) add_node(hasher, node);
  return hasher.result().text();
}

std::string key_of_choice(const speed::TimedModel& subject, const std::vector<bool>& candidates,
                          const std::vector<std::string>& kernels, const speed::SpeedGoal& goal, bool by_values) {
  Hasher hasher;
  const auto add = [&](const std::string& text) { hasher.add(text + '\n'); };
  add(fmt::format("{} {}{}", static_cast<int>(goal.optimize_for), goal.size_worth, by_values ? " by values" : ""));
  const auto& nodes = subject.model.graph.nodes;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    add_node(hasher, nodes[n]);
    add(fmt::format("{} {}", candidates[n], kernels[n]));
  }
  return hasher.result().text();
}

}  // namespace detent::run
