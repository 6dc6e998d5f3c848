#include "pipeline/refine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "accuracy/float_choice.h"
#include "accuracy/integer_chains.h"
#include "accuracy/trial_model.h"
#include "base/error.h"
#include "graph/index.h"
#include "graph/work.h"
#include "pipeline/collect.h"
#include "pipeline/score_command.h"
#include "pipeline/sweep_setup.h"
#include "pipeline/trials.h"

namespace detent::pipeline {
namespace {

using accuracy::FloatChoice;

// Inferences that measuring single marks may take for each calibration sample, and how many samples they run on.
constexpr std::size_t kRunsPerSample = 4;
constexpr std::size_t kMostSamples = 4;
// The same for whole assignments. Each takes a run of the float model beside its own.
constexpr std::size_t kJudgingRunsPerSample = 6;
constexpr std::size_t kMostAssignments = 15;
constexpr std::size_t kMostRemovals = 7;
// Without a target: up to a tenth of the multiplications, for choices that take away at least 1 % of the error and
// three times their share of the multiplications, until the error is below 0.01 % (40 dB).
constexpr accuracy::ChoiceLimits kAutomatic{.macs = 0.1, .worth_removing = 0.01, .ratio = 3, .error = 1e-4};
constexpr accuracy::ChoiceLimits kNone{
    .macs = std::numeric_limits<double>::infinity(), .worth_removing = 0, .ratio = 0, .error = 0};

// The cost of a table, as a share of the multiplications: dear, since it is the size of the model that grows.
constexpr double kTable = 1;

double worst_sqnr(const TrialResult& points) {
  double worst = std::numeric_limits<double>::infinity();
  for (const auto& point : points) {
    if (point.signal > 0) worst = std::min(worst, point.sqnr_db());
  }
  return worst;
}

double worst_cosine(const TrialResult& points) {
  double worst = 1;
  for (const auto& point : points) {
    if (point.noise > 0) worst = std::min(worst, point.cosine());
  }
  return worst;
}

class Refiner {
 public:
  Refiner(const Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
          data::SampleSource& source, const RefineOptions& options)
      : prepared_(prepared),
        placement_(placement),
        runtime_(runtime),
        source_(source),
        options_(options),
        index_(prepared.model) {}

  Refinement run() {
    measure();
    list_sensitivities();
    auto candidates = weigh();
    std::vector<FloatChoice> choices;
    if (options_.accuracy.target) {
      choices = reach(choose(std::move(candidates), kNone));
    } else if (options_.accuracy.sensitivity == SensitivityMode::automatic) {
      auto limits = kAutomatic;
      limits.macs -= other_macs_;
      choices = choose(std::move(candidates), limits);
    }
    auto refined = place_with(choices);
    if (refined.marks.empty()) {
      throw bad_input(fmt::format("--accuracy-target: only the float model reaches {}; the worst is {}",
                                  *options_.accuracy.target, result_.sensitivities.front().node),
                      "lower the target, or give --activation-type uint16; --sensitivity report tells more");
    }
    describe(choices, refined);
    return {std::move(refined), std::move(result_)};
  }

 private:
  // Marks are measured one at a time where the inferences allow it, else in groups of neighbours that share the result.
  void measure() {
    const auto params = options_.params_of(placement_);
    std::vector<std::string> all;
    for (const auto& mark : placement_.marks) {
      if (params.contains(mark.value)) all.push_back(mark.value);
    }
    const std::size_t allowed = std::max<std::size_t>(kRunsPerSample * options_.samples, 8);
    const std::size_t group = (all.size() + allowed - 1) / allowed;
    std::vector<std::vector<std::string>> trials;
    for (std::size_t at = 0; at < all.size(); at += group) {
      const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(at + group, all.size()));
      trials.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(at), end);
    }
    // Beside the trials, the float model runs on each sample.
    const std::size_t samples = std::clamp<std::size_t>(allowed / (trials.size() + 1), 1, kMostSamples);
    const auto results = run_trials(placement_, params, trials, samples);
    for (std::size_t t = 0; t < trials.size(); ++t) {
      for (const auto& mark : trials[t]) errors_[mark] = noise_of(results[t]) / static_cast<double>(trials[t].size());
    }
  }

  std::vector<TrialResult> run_trials(const quantization::Placement& placement, const quantization::Params& params,
                                      const std::vector<std::vector<std::string>>& trials, std::size_t samples) {
    const auto model = accuracy::make_trial_model(prepared_.model, prepared_.types, placement, params);
    const auto directory = options_.directory / "trials";
    std::filesystem::remove_all(directory);  // an interrupted run's, whose trials may have been others
    std::filesystem::create_directory(directory);
    plan_sweep(directory);
    auto results = pipeline::run_trials(model, params, trials, runtime_, source_,
                                        {.samples = samples,
                                         .threads = options_.threads,
                                         .cuts = model.map_cuts(sweep_->cuts),
                                         .spool = sweep_->spool.get(),
                                         .progress = options_.progress,
                                         .stop = options_.stop});
    sweep_->spool.reset();
    std::filesystem::remove_all(directory);
    return results;
  }

  // The cuts serve all trials; each lot of them has a spool of its own.
  void plan_sweep(const std::filesystem::path& directory) {
    if (!sweep_) {
      const planning::Circumstances circumstances{placement_.to_observe().size(), false, thread_count(options_.threads),
                                                  1, 0};
      sweep_ =
          set_up_sweep(prepared_, placement_, runtime_, source_, circumstances, options_.resources, directory, nullptr);
    } else if (!sweep_->cuts.empty()) {
      sweep_->spool = make_spool(options_.resources, sweep_->plan ? sweep_->plan->spool_memory : 0, directory);
    }
  }

  void list_sensitivities() {
    for (const auto& mark : placement_.marks) {
      const auto found = errors_.find(mark.value);
      if (found == errors_.end()) continue;
      const int producer = index_.producer(mark.value);
      const auto readers = index_.consumers(mark.value);
      const int node = producer != graph::kNone ? producer : readers.empty() ? graph::kNone : readers.front();
      result_.sensitivities.push_back({mark.value, node == graph::kNone ? "" : label(static_cast<std::size_t>(node)),
                                       mark.is_weight, found->second});
    }
    std::stable_sort(result_.sensitivities.begin(), result_.sensitivities.end(),
                     [](const auto& a, const auto& b) { return a.error > b.error; });
  }

  // The products in integers, each with its share of the multiplications.
  std::vector<accuracy::Candidate> weigh() {
    const auto types = static_types(prepared_.types, prepared_.model, runtime_, source_);
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
    return candidates;
  }

  std::vector<FloatChoice> choose(std::vector<accuracy::Candidate> candidates, const accuracy::ChoiceLimits& limits) {
    return accuracy::choose_floats(
        std::move(candidates), errors_,
        [this](const auto& floats) { return place(prepared_, options_.config, floats); }, limits);
  }

  quantization::Placement place_with(const std::vector<FloatChoice>& choices) const {
    std::vector<std::size_t> floats;
    for (const auto& choice : choices) floats.push_back(choice.node);
    return place(prepared_, options_.config, floats);
  }

  // The fewest of the choices, taken from the front, that reach the target; of those, the ones that are not needed
  // after all go again, the most expensive first.
  std::vector<FloatChoice> reach(const std::vector<FloatChoice>& order) {
    if (is_reached({})) return {};
    std::size_t low = 0, high = order.size();  // not enough, enough
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      (is_reached({order.begin(), order.begin() + static_cast<std::ptrdiff_t>(middle)}) ? high : low) = middle;
    }
    std::vector<FloatChoice> chosen(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(high));
    std::vector<FloatChoice> by_cost = chosen;
    std::stable_sort(by_cost.begin(), by_cost.end(), [](const auto& a, const auto& b) { return a.macs > b.macs; });
    for (std::size_t i = 0; i < std::min(by_cost.size(), kMostRemovals); ++i) {
      auto fewer = chosen;
      std::erase_if(fewer, [&](const auto& choice) { return choice.node == by_cost[i].node; });
      if (is_reached(fewer)) chosen = std::move(fewer);
    }
    return chosen;
  }

  bool is_reached(const std::vector<FloatChoice>& choices) {
    const auto placement = place_with(choices);
    if (placement.marks.empty()) return true;
    const auto metric = options_.accuracy.metric;
    if (metric == AccuracyMetric::command) return score(placement) >= *options_.accuracy.target;
    const auto points = judge(placement);
    return (metric == AccuracyMetric::cosine ? worst_cosine(points) : worst_sqnr(points)) >= *options_.accuracy.target;
  }

  std::size_t judging_samples() const {
    const std::size_t most =
        options_.readable == 0 ? options_.samples : std::min<std::size_t>(options_.readable, options_.samples);
    return std::clamp<std::size_t>(kJudgingRunsPerSample * options_.samples / (2 * kMostAssignments), 1, most);
  }

  TrialResult judge(const quantization::Placement& placement) {
    const auto params = options_.params_of(placement);
    std::vector<std::string> all;
    for (const auto& mark : placement.marks) all.push_back(mark.value);
    return run_trials(placement, params, {all}, judging_samples()).front();
  }

  // Relative to the float model's.
  double score(const quantization::Placement& placement) {
    const auto& command = options_.accuracy.command;
    if (!float_score_) float_score_ = score_by_command(command, options_.model);
    const auto path = options_.directory / "candidate.onnx";
    options_.write(placement, path);
    const double found = score_by_command(command, path);
    std::filesystem::remove(path);
    return found / *float_score_;
  }

  void describe(const std::vector<FloatChoice>& choices, const quantization::Placement& refined) {
    result_.samples = judging_samples();
    const auto all = judge(placement_);
    const auto chosen = choices.empty() ? all : judge(refined);
    result_.sqnr_all_db = worst_sqnr(all);
    result_.sqnr_db = worst_sqnr(chosen);
    result_.cosine = worst_cosine(chosen);
    if (options_.accuracy.metric == AccuracyMetric::command && options_.accuracy.target) result_.score = score(refined);
    result_.integer_macs = 1 - other_macs_;
    for (const auto& choice : choices) {
      const double macs = is_table(choice.node) ? 0 : choice.macs;
      result_.float_nodes.push_back({label(choice.node), choice.removed, macs});
      result_.integer_macs -= macs;
    }
  }

  bool is_table(std::size_t node) const { return accuracy::is_table(prepared_.model.graph.nodes[node], index_); }
  std::string label(std::size_t node) const { return prepared_.model.graph.nodes[node].label(); }

  const Prepared& prepared_;
  const quantization::Placement& placement_;
  const exec::Runtime& runtime_;
  data::SampleSource& source_;
  const RefineOptions& options_;
  graph::Index index_;
  std::optional<SweepSetup> sweep_;
  accuracy::MarkErrors errors_;
  double other_macs_ = 0;  // share of the multiplications that are in float anyway
  std::optional<double> float_score_;
  AccuracyResult result_;
};

}  // namespace

Refinement refine(const Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
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
