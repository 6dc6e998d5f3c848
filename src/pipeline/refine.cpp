#include "pipeline/refine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "accuracy/fallback_choice.h"
#include "accuracy/integer_chains.h"
#include "base/error.h"
#include "calibrate/methods.h"
#include "graph/index.h"
#include "graph/work.h"
#include "pipeline/trial_runner.h"
#include "run/score_command.h"
#include "run/sweep_setup.h"

namespace detent::pipeline {
namespace {

using accuracy::FallbackChoice;

// Inferences that measuring single marks may take for each calibration sample, with a target and without, and how many
// samples they run on.
constexpr std::size_t kRunsPerSampleForTarget = 2;
constexpr std::size_t kRunsPerSample = 3;
constexpr std::size_t kMostSamples = 4;
// The same for trying other methods, of which one is taken that leaves at most this share of a value's error.
constexpr std::size_t kMethodRunsPerSample = 1;
constexpr double kBetterMethod = 0.9;
// The same for whole assignments, and how many are judged at the most. Each takes a run of the float model beside its
// own.
constexpr std::size_t kJudgingRunsPerSampleForTarget = 3;
constexpr std::size_t kMostAssignmentsForTarget = 15;
constexpr std::size_t kJudgingRunsPerSample = 2;
constexpr std::size_t kMostAssignments = 4;
constexpr std::size_t kMostRemovals = 7;
// Without a target: up to a tenth of the multiplications, for choices that take away at least 1 % of the error and
// three times their share of the multiplications, until the error is below 0.01 % (40 dB).
constexpr accuracy::ChoiceLimits kAutomatic{.macs = 0.1, .worth_removing = 0.01, .ratio = 3, .error = 1e-4};
// Of what is left of the error, so many products are named that make this share of it.
constexpr std::size_t kMostNamed = 3;
constexpr double kWorthNaming = 0.1;
constexpr accuracy::ChoiceLimits kNone{
    .macs = std::numeric_limits<double>::infinity(), .worth_removing = 0, .ratio = 0, .error = 0};

// The cost of a table, as a share of the multiplications: dear, since it is the size of the model that grows.
constexpr double kTable = 1;

class Refiner {
 public:
  Refiner(const run::Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
          data::SampleSource& source, const RefineOptions& options)
      : prepared_(prepared),
        placement_(placement),
        runtime_(runtime),
        source_(source),
        options_(options),
        index_(prepared.model),
        ranges_(options.ranges),
        wide_ranges_(options.wide_ranges),
        runner_options_{options.resources, options.directory, options.threads, options.progress, options.stop},
        runner_(prepared, runtime, source, runner_options_) {}

  Refinement run() {
    complete_ranges();
    measure();
    if (options_.accuracy.sensitivity == SensitivityMode::automatic) try_methods();
    list_sensitivities();
    const auto candidates = weigh();
    std::vector<FallbackChoice> choices;
    if (options_.accuracy.target) {
      choices = reach(choose(candidates, kNone));
    } else if (options_.accuracy.sensitivity == SensitivityMode::automatic) {
      auto limits = kAutomatic;
      limits.macs -= other_macs_;
      choices = choose(candidates, limits);
    }
    auto refined = place_with(choices);
    if (refined.marks.empty()) throw out_of_reach("only the float model reaches", "or give --activation-type uint16");
    const auto all = judge(placement_);
    auto chosen = choices.empty() ? all : judge(refined);
    // What is good for each product alone may not be so for all of them on other samples.
    if (!options_.accuracy.target && noise_of(chosen) >= noise_of(all)) {
      choices.clear();
      refined = placement_;
      chosen = all;
    }
    describe(choices, refined, all, chosen);
    if (options_.accuracy.metric == AccuracyMetric::command && options_.accuracy.target) result_.score = score(refined);
    auto ranges = ranges_of(refined);
    auto worst = weigh_what_is_left(refined, choices);
    return {std::move(refined), std::move(ranges), std::move(result_), std::move(worst)};
  }

 private:
  // Ranges of values that a smaller placement marks anew are those of the values whose scale they shared before.
  void complete_ranges() {
    for (auto* ranges : {&ranges_, &wide_ranges_}) {
      for (const auto& mark : placement_.marks) {
        const auto found = ranges->find(root_of(mark).value);
        if (!mark.is_constant && found != ranges->end()) ranges->try_emplace(mark.value, found->second);
      }
    }
  }

  const quantization::Mark& root_of(const quantization::Mark& mark) const {
    const auto* root = &mark;
    while (root->shares) {
      const auto* next = placement_.find(*root->shares);
      if (next == nullptr) break;
      root = next;
    }
    return *root;
  }

  quantization::Params params_of(const quantization::Placement& placement) const {
    return options_.params_of(placement, ranges_of(placement));
  }

  calibration::Ranges ranges_of(const quantization::Placement& placement) const {
    auto ranges = ranges_;
    for (const auto& mark : placement.marks) {
      const auto found = wide_ranges_.find(mark.value);
      if (mark.wide && found != wide_ranges_.end()) ranges[mark.value] = found->second;
    }
    return ranges;
  }

  Error out_of_reach(const char* what, const char* cure) const {
    return bad_input(fmt::format("--accuracy-target: {} {}; the worst is {}", what, *options_.accuracy.target,
                                 result_.sensitivities.front().node),
                     fmt::format("lower the target, {}; --sensitivity report tells more", cure));
  }

  // Marks are measured one at a time where the inferences allow it, else in groups of neighbours that share the result.
  void measure() {
    const auto params = params_of(placement_);
    const auto roundings = accuracy::roundings_of(params);
    std::vector<std::string> all;
    for (const auto& mark : placement_.marks) {
      if (params.contains(mark.value)) all.push_back(mark.value);
    }
    const std::size_t runs = options_.accuracy.target ? kRunsPerSampleForTarget : kRunsPerSample;
    const std::size_t allowed = std::max<std::size_t>(runs * options_.samples, 8);
    const std::size_t group = (all.size() + allowed - 1) / allowed;
    std::vector<accuracy::Trial> trials;
    for (std::size_t at = 0; at < all.size(); ++at) {
      if (at % group == 0) trials.emplace_back();
      trials.back()[all[at]] = &roundings.at(all[at]);
    }
    // Beside the trials, the float model runs on each sample.
    measuring_samples_ = std::clamp<std::size_t>(allowed / (trials.size() + 1), 1, kMostSamples);
    const auto results = runner_.run(placement_, params, trials, {measuring_samples_});
    for (std::size_t t = 0; t < trials.size(); ++t) {
      for (const auto& [mark, rounding] : trials[t])
        errors_[mark] = noise_of(results[t]) / static_cast<double>(trials[t].size());
    }
    is_each_measured_ = group == 1;
  }

  /// A range that a value could have instead.
  struct Alternative {
    const quantization::Mark* mark = nullptr;
    std::optional<CalibrationMethod> method;  // unset: the range that it has
    calibration::Range range;
    accuracy::Rounding rounding;
  };

  // Of the values that do most harm, each takes the range that does least, unless that is no better for all of them.
  void try_methods() {
    const auto params = params_of(placement_);
    const auto alternatives = list_alternatives(params);
    std::vector<accuracy::Trial> trials;
    for (const auto& alternative : alternatives) trials.push_back({{alternative.mark->value, &alternative.rounding}});
    if (trials.empty()) return;
    const auto results = runner_.run(placement_, params, trials, {measuring_samples_});
    const auto ranges_before = ranges_;
    const auto errors_before = errors_;
    for (std::size_t i = 0; i < alternatives.size();) {
      const auto& value = alternatives[i].mark->value;
      const Alternative* best = nullptr;
      double least = errors_.at(value), before = least;
      for (; i < alternatives.size() && alternatives[i].mark->value == value; ++i) {
        const double error = noise_of(results[i]);
        if (!alternatives[i].method) before = least = error;
        if (error >= least) continue;
        least = error;
        best = &alternatives[i];
      }
      if (best == nullptr || least > kBetterMethod * before) continue;
      adopt(*best);
      result_.methods.push_back({value, std::string(calibration::method_name(*best->method)), before, least});
      errors_[value] = least;
    }
    if (result_.methods.empty()) return;
    if (is_better_than(ranges_before)) return;
    ranges_ = ranges_before;
    errors_ = errors_before;
    result_.methods.clear();
  }

  // With everything rounded: what is good for each value alone may not be so for all of them.
  bool is_better_than(const calibration::Ranges& before) {
    const auto params = params_of(placement_);
    const auto now = accuracy::roundings_of(params);
    const auto then = accuracy::roundings_of(options_.params_of(placement_, before));
    const std::vector<accuracy::Trial> trials{accuracy::trial_of(now), accuracy::trial_of(then)};
    const auto results = runner_.run(placement_, params, trials, judging_samples());
    return noise_of(results[0]) < noise_of(results[1]);
  }

  // As many as the inferences allow, those of one value together.
  std::vector<Alternative> list_alternatives(const quantization::Params& params) const {
    const std::size_t most = kMethodRunsPerSample * options_.samples / measuring_samples_;
    std::vector<Alternative> all;
    for (const auto& [value, error] : by_error()) {
      if (error < kNoHarm) break;
      const auto* mark = placement_.find(value);
      const auto own = ranges_.find(value);
      if (mark->is_constant || mark->shares || own == ranges_.end()) continue;
      std::vector<Alternative> of_value;
      if (!is_each_measured_) of_value.push_back({mark, {}, own->second, {params.at(value)}});
      for (const auto& [method, ranges] : options_.other_ranges) {
        const auto other = ranges.find(value);
        if (other == ranges.end() || (other->second.min == own->second.min && other->second.max == own->second.max))
          continue;
        of_value.push_back({mark, method, other->second, {params.at(value)}});
        auto changed = ranges_;
        changed[value] = other->second;
        of_value.back().rounding.params = options_.params_of(placement_, changed).at(value);
      }
      if (of_value.empty() || !of_value.back().method) continue;
      if (all.size() + of_value.size() + 1 > most) break;
      std::move(of_value.begin(), of_value.end(), std::back_inserter(all));
    }
    return all;
  }

  // For all marks that have the value's range now.
  void adopt(const Alternative& chosen) {
    const auto& source = placement_.source_of(chosen.mark->value);
    for (const auto& mark : placement_.marks) {
      if (!mark.is_constant && placement_.source_of(root_of(mark).value) == source) ranges_[mark.value] = chosen.range;
    }
  }

  std::vector<std::pair<std::string, double>> by_error() const {
    std::vector<std::pair<std::string, double>> sorted;
    for (const auto& mark : placement_.marks) {
      const auto found = errors_.find(mark.value);
      if (found != errors_.end()) sorted.emplace_back(mark.value, found->second);
    }
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    return sorted;
  }

  void list_sensitivities() {
    for (const auto& [value, error] : by_error()) {
      const int producer = index_.producer(value);
      const auto readers = index_.consumers(value);
      const int node = producer != graph::kNone ? producer : readers.empty() ? graph::kNone : readers.front();
      result_.sensitivities.push_back({value, node == graph::kNone ? "" : label(static_cast<std::size_t>(node)),
                                       index_.initializer(value) != graph::kNone, error});
    }
  }

  // The products in integers, each with its share of the multiplications.
  std::vector<accuracy::Candidate> weigh() {
    const auto types = run::static_types(prepared_.types, prepared_.model, runtime_, source_);
    std::vector<accuracy::Candidate> candidates;
    double all = 0, others = 0;
    const auto& nodes = prepared_.model.graph.nodes;
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      const auto work = graph::work_of(prepared_.model, index_, types, nodes[n]);
      const double macs = work ? static_cast<double>(work->macs) : 0;
      all += macs;
      if (placement_.selected[n] && is_table(n)) {
        candidates.push_back({n, kTable});
      } else if (placement_.selected[n] && accuracy::is_product(nodes[n])) {
        candidates.push_back({n, macs});
      } else {
        others += macs;
      }
    }
    for (auto& candidate : candidates) {
      if (is_table(candidate.node)) continue;
      // Where no shape is known, all count alike.
      candidate.macs = all > 0 ? candidate.macs / all : 1 / static_cast<double>(candidates.size());
    }
    other_macs_ = all > 0 ? others / all : 0;
    products_ = candidates;
    return candidates;
  }

  std::vector<FallbackChoice> choose(const std::vector<accuracy::Candidate>& candidates,
                                     const accuracy::ChoiceLimits& limits) {
    return accuracy::choose_fallbacks(
        candidates, errors_, [this](const auto& nodes) { return place_with(nodes); }, limits);
  }

  quantization::Placement place_with(const std::vector<FallbackChoice>& choices) const {
    std::vector<std::size_t> nodes;
    for (const auto& choice : choices) nodes.push_back(choice.node);
    return place_with(nodes);
  }

  quantization::Placement place_with(const std::vector<std::size_t>& nodes) const {
    return run::place(prepared_, options_.config, {options_.accuracy.fallback, nodes});
  }

  // The fewest of the choices, taken from the front, that reach the target; of those, the ones that are not needed
  // after all go again, the most expensive first.
  std::vector<FallbackChoice> reach(const std::vector<FallbackChoice>& order) {
    if (is_reached({})) return {};
    // In float, all of them are the float model.
    if (options_.accuracy.fallback != AccuracyFallback::float32 && !is_reached(order))
      throw out_of_reach("activations of 16 bits do not reach", "or give --accuracy-fallback float32");
    std::size_t low = 0, high = order.size();  // not enough, enough
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      (is_reached({order.begin(), order.begin() + static_cast<std::ptrdiff_t>(middle)}) ? high : low) = middle;
    }
    std::vector<FallbackChoice> chosen(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(high));
    std::vector<FallbackChoice> by_cost = chosen;
    std::stable_sort(by_cost.begin(), by_cost.end(), [](const auto& a, const auto& b) { return a.macs > b.macs; });
    for (std::size_t i = 0; i < std::min(by_cost.size(), kMostRemovals); ++i) {
      auto fewer = chosen;
      std::erase_if(fewer, [&](const auto& choice) { return choice.node == by_cost[i].node; });
      if (is_reached(fewer)) chosen = std::move(fewer);
    }
    return chosen;
  }

  bool is_reached(const std::vector<FallbackChoice>& choices) {
    const auto placement = place_with(choices);
    if (placement.marks.empty()) return true;
    const auto metric = options_.accuracy.metric;
    if (metric == AccuracyMetric::command) return score(placement) >= *options_.accuracy.target;
    const auto points = judge(placement);
    return (metric == AccuracyMetric::cosine ? worst_cosine(points) : worst_sqnr_db(points)) >=
           *options_.accuracy.target;
  }

  // From all over the samples, if they can be read again: those that come first may be of one kind.
  TrialSamples judging_samples() const {
    const std::size_t all = options_.samples;
    const std::size_t count = options_.accuracy.target
                                  ? kJudgingRunsPerSampleForTarget * all / (2 * kMostAssignmentsForTarget)
                                  : kJudgingRunsPerSample * all / (2 * kMostAssignments);
    if (options_.readable != 0) return {std::clamp<std::size_t>(count, 1, std::min(options_.readable, all))};
    return spread_over(all, std::clamp<std::size_t>(count, 1, all));
  }

  TrialResult judge(const quantization::Placement& placement) {
    const auto params = params_of(placement);
    const auto roundings = accuracy::roundings_of(params);
    const accuracy::Trial all = accuracy::trial_of(roundings);
    return runner_.run(placement, params, {&all, 1}, judging_samples()).front();
  }

  // Relative to the float model's.
  double score(const quantization::Placement& placement) {
    const auto& accuracy = options_.accuracy;
    const auto score_of = [&](const std::filesystem::path& model) {
      return accuracy.score ? accuracy.score(model) : run::score_by_command(accuracy.command, model);
    };
    if (!float_score_) float_score_ = score_of(options_.model);
    const auto path = options_.directory / "candidate.onnx";
    options_.write(placement, params_of(placement), path);
    const double found = score_of(path);
    std::filesystem::remove(path);
    return found / *float_score_;
  }

  void describe(const std::vector<FallbackChoice>& choices, const quantization::Placement& refined,
                const TrialResult& all, const TrialResult& chosen) {
    result_.samples = judging_samples().count;
    result_.sqnr_all_db = worst_sqnr_db(all);
    result_.sqnr_db = worst_sqnr_db(chosen);
    result_.cosine = worst_cosine(chosen);
    result_.integer_macs = 1 - other_macs_;
    const bool in_float = options_.accuracy.fallback == AccuracyFallback::float32;
    for (const auto& choice : choices) {
      const double macs = is_table(choice.node) ? 0 : choice.macs;
      (in_float ? result_.float_nodes : result_.wide_nodes).push_back({label(choice.node), choice.removed, macs});
      if (in_float) result_.integer_macs -= macs;
    }
    result_.wide_macs = wide_macs(refined);
  }

  // By the errors of single marks, which add up to first order.
  std::vector<FallbackNode> weigh_what_is_left(const quantization::Placement& refined,
                                               const std::vector<FallbackChoice>& choices) {
    const double now = accuracy::predicted_error(refined, errors_);
    if (now == 0) return {};
    for (const auto& mark : refined.marks) {
      if (mark.is_weight && errors_.contains(mark.value)) result_.weights_share += errors_.at(mark.value) / now;
    }
    std::vector<FallbackNode> worst;
    for (const auto& product : products_) {
      auto more = choices;
      more.push_back({product.node, product.macs, 0});
      const double removed = 1 - accuracy::predicted_error(place_with(more), errors_) / now;
      const double macs = is_table(product.node) ? 0 : product.macs;
      if (removed >= kWorthNaming) worst.push_back({label(product.node), removed, macs});
    }
    std::stable_sort(worst.begin(), worst.end(),
                     [](const auto& a, const auto& b) { return a.error_share > b.error_share; });
    worst.resize(std::min(worst.size(), kMostNamed));
    return worst;
  }

  // Of products that read 16 bits; what width they make costs no multiplication.
  double wide_macs(const quantization::Placement& placement) const {
    std::set<std::string> wide;
    for (const auto& mark : placement.marks) {
      if (mark.wide) wide.insert(mark.value);
    }
    double sum = 0;
    for (const auto& product : products_) {
      const auto& inputs = prepared_.model.graph.nodes[product.node].inputs();
      const bool any =
          std::any_of(inputs.begin(), inputs.end(), [&](const auto& value) { return wide.contains(value); });
      if (any && !is_table(product.node)) sum += product.macs;
    }
    return sum;
  }

  bool is_table(std::size_t node) const { return accuracy::is_table(prepared_.model.graph.nodes[node], index_); }
  std::string label(std::size_t node) const { return prepared_.model.graph.nodes[node].label(); }

  const run::Prepared& prepared_;
  const quantization::Placement& placement_;
  const exec::Runtime& runtime_;
  data::SampleSource& source_;
  const RefineOptions& options_;
  graph::Index index_;
  calibration::Ranges ranges_, wide_ranges_;
  TrialRunnerOptions runner_options_;
  TrialRunner runner_;
  std::size_t measuring_samples_ = 1;
  bool is_each_measured_ = true;
  accuracy::MarkErrors errors_;
  std::vector<accuracy::Candidate> products_;
  double other_macs_ = 0;  // share of the multiplications that are in float anyway
  std::optional<double> float_score_;
  AccuracyResult result_;
};

}  // namespace

std::string what_is_left(const AccuracyResult& result, const AccuracyConfig& accuracy,
                         const std::vector<FallbackNode>& worst) {
  if (accuracy.target || accuracy.sensitivity != SensitivityMode::automatic || !is_far(result)) return {};
  const bool tuned = result.tuned && result.tuned->kept;
  std::string text = fmt::format(
      "8 bits leave the results {:.1f} dB from the float model's{} {:.0f} % of that error {} of weights{}, the rest of "
      "activations{}",
      result.sqnr_db, tuned ? "; with weights rounded to the nearest," : ":", 100 * result.weights_share,
      tuned ? "was" : "is", result.tuned ? "" : " (--finetune gptq)",
      accuracy.fallback == AccuracyFallback::float32 ? " (--accuracy-fallback int16)" : "");
  for (const auto& node : worst) {
    text += fmt::format("; {} makes {:.0f} % for {:.1f} % of the multiplications", node.node, 100 * node.error_share,
                        100 * node.macs_share);
  }
  return text;
}

Refinement refine(const run::Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
                  data::SampleSource& source, const RefineOptions& options) {
  try {
    return Refiner(prepared, placement, runtime, source, options).run();
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::resource || options.accuracy.target) throw;
    throw resource_error(fmt::format("measuring what rounding does to the results: {}", e.what()),
                         fmt::format("{}{}or give --sensitivity off", e.hint(), e.hint().empty() ? "" : "; "));
  }
}

}  // namespace detent::pipeline
