// Gates in integers: x * Sigmoid(x) behind a convolution takes the runtime less than half the time there, and the
// chains do not end at it. What the additional roundings do is measured for groups of gates that follow one another;
// those that do least go to integers, as many as the results allow.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "calibration/methods.h"
#include "graph/index.h"
#include "graph/traits.h"
#include "quantization/emit/dynamic.h"
#include "quantization/placement/value_kinds.h"
#include "remedies/remedies.h"
#include "run/context.h"
#include "run/model/finish.h"

namespace detent::remedies {
namespace {

// An output that stays nearer than this (35 dB) may lose; others may lose so much (1 dB).
constexpr double kNearEnoughOfGates = 3.2e-4;
constexpr double kMayGrow = 1.26;
// Each group is measured by itself, on so many samples.
constexpr std::size_t kMostGroups = 8;
constexpr std::size_t kMostSamples = 2;

class Gates : public Remedy {
 public:
  bool propose(const Draft& draft, Evaluator& evaluator) override {
    const auto& model = draft.prepared.model;
    const graph::Index index(model);
    const auto whole = assign(draft, evaluator, quantization::all_gates(model, index));
    for (const auto& gate : quantization::find_gated_activations(model, index)) {
      const auto n = static_cast<std::size_t>(gate.sigmoid);
      if (whole.placement.selected[n]) gates_.push_back(model.graph.nodes[n].outputs().front());
    }
    if (gates_.empty()) return false;
    before_ = errors_of(evaluator.judged(draft));
    for (const double error : before_) allowed_.push_back(std::max(kNearEnoughOfGates, kMayGrow * error));
    chosen_.insert(gates_.begin(), gates_.end());
    return true;
  }

  bool is_better(const Draft& draft, Evaluator& evaluator) override {
    // All of them first, since each that stays in float takes conversions.
    if (is_near(draft, evaluator)) return true;
    measure(draft, evaluator);
    for (const double share : {1.0, 0.5}) {  // errors of single groups add up only roughly
      chosen_ = choose(share);
      if (chosen_.empty()) return false;
      if (is_near(draft, evaluator)) return true;
    }
    return false;
  }

  void keep(Draft& draft, Evaluator& evaluator) override {
    draft.notes.push_back(count_with_noun(chosen_.size(), "SiLU or HardSwish node") +
                          " quantized: that costs little accuracy");
    draft.prepared.integer_gates = std::move(chosen_);
    draft.assignment = std::move(assignment_);
    draft.sensitivities.reset();
    evaluator.set_judged(std::move(judged_));
  }

 private:
  static quantization::Assignment assign(const Draft& draft, const Evaluator& evaluator,
                                         const quantization::GateNames& gates) {
    const auto& config = evaluator.options().config;
    auto placement = run::place_qdq_pairs(draft.prepared, config, {}, &gates);
    return quantization::assign(draft.prepared.model, std::move(placement), draft.proposals, config);
  }

  bool is_near(const Draft& draft, Evaluator& evaluator) {
    assignment_ = assign(draft, evaluator, chosen_);
    judged_ = evaluator.judge(draft, assignment_);
    const auto errors = errors_of(judged_);
    return std::equal(errors.begin(), errors.end(), allowed_.begin(), std::less_equal<>());
  }

  std::size_t group_size() const { return (gates_.size() + kMostGroups - 1) / kMostGroups; }

  // What each group adds: roundings that are not there, or that only quantized nodes see, with all gates in float.
  void measure(const Draft& draft, Evaluator& evaluator) {
    const graph::Index index(draft.prepared.model);
    const auto whole = assign(draft, evaluator, quantization::all_gates(draft.prepared.model, index));
    std::map<std::string, bool> float_readers_unrounded;
    for (const auto& mark : draft.assignment.placement.marks)
      float_readers_unrounded[mark.value] = mark.float_readers_unrounded;
    std::vector<int> starts;  // of the groups
    for (std::size_t g = 0; g < gates_.size(); g += group_size()) starts.push_back(index.producer(gates_[g]));
    const auto roundings = roundings_of(whole.values);
    std::vector<Trial> trials(starts.size());
    for (const auto& mark : whole.placement.marks) {
      const auto now = float_readers_unrounded.find(mark.value);
      const bool is_added =
          !mark.is_constant && !mark.float_readers_unrounded && (now == float_readers_unrounded.end() || now->second);
      if (!is_added || !roundings.contains(mark.value)) continue;
      const auto after = std::upper_bound(starts.begin() + 1, starts.end(), index.producer(mark.value));
      trials[static_cast<std::size_t>(after - starts.begin()) - 1][mark.value] = &roundings.at(mark.value);
    }
    auto samples = evaluator.judging_samples();
    samples.count = std::min(samples.count, kMostSamples);
    for (const auto& result : evaluator.run(draft, whole.values, trials, samples, {}, &whole.placement))
      added_.push_back(errors_of(result));
  }

  // As many groups as fit into a share of what may be lost, those first that take least of it.
  quantization::GateNames choose(double share) const {
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t g = 0; g < added_.size(); ++g) order.emplace_back(part_of_allowed(added_[g]), g);
    std::sort(order.begin(), order.end());
    quantization::GateNames chosen;
    PointErrors sum(before_.size());
    for (const auto& [part, g] : order) {
      auto more = sum;
      for (std::size_t i = 0; i < more.size(); ++i) more[i] += added_[g][i];
      if (part_of_allowed(more) > share) continue;
      sum = std::move(more);
      for (std::size_t i = g * group_size(); i < std::min((g + 1) * group_size(), gates_.size()); ++i)
        chosen.insert(gates_[i]);
    }
    return chosen;
  }

  // Of the output that loses most of what it may lose.
  double part_of_allowed(const PointErrors& added) const {
    double part = 0;
    for (std::size_t i = 0; i < added.size(); ++i) part = std::max(part, added[i] / (allowed_[i] - before_[i]));
    return part;
  }

  std::vector<std::string> gates_;  // that integers reach, in the order of the model
  PointErrors before_, allowed_;    // with all gates in float, and at the most
  std::vector<PointErrors> added_;  // by each group
  quantization::GateNames chosen_;
  quantization::Assignment assignment_;
  TrialResult judged_;
};

constexpr double kNearEnough = 1e-3;  // 30 dB: near enough, whatever the other layers do

// Recurrent layers with integer weights, which find the scales of their activations while the model runs: no trial
// rounds as they do, so each is measured as deployed, and those that do most harm stay in float.
class Recurrent : public Remedy {
 public:
  bool propose(const Draft& draft, Evaluator& evaluator) override {
    std::vector<std::string> layers;
    for (const auto n : run::recurrent_layers(draft.prepared, evaluator.options().config))
      layers.push_back(draft.prepared.model.graph.nodes[n].id());
    const auto stored = run::stored_layers(draft.prepared);
    layers.insert(layers.end(), stored.begin(), stored.end());
    if (layers.empty()) return false;
    double sum = 0;
    for (const auto& id : layers) {
      errors_.emplace_back(error_of(draft, evaluator, layers, id), id);
      sum += errors_.back().first;
    }
    std::stable_sort(errors_.begin(), errors_.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    const double most = allowed(draft, evaluator);
    std::size_t left = 0;
    for (; left < errors_.size() && sum > most; ++left) sum -= errors_[left].first;
    errors_.resize(left);
    return left > 0;
  }

  bool is_better(const Draft&, Evaluator&) override { return true; }

  void keep(Draft& draft, Evaluator&) override {
    for (const auto& [error, id] : errors_) {
      draft.prepared.leave_in_float(id, run::InFloat::inexact);
      const bool is_stored = draft.prepared.choice(id).stored;
      draft.notes.push_back(fmt::format(
          "{} '{}' {} alone the results would have {:.1f} dB", is_stored ? "layer" : "LSTM", id,
          is_stored ? "keeps its weights in float: with 8 bits in it" : "stays in float: with integers in it",
          -10 * std::log10(error)));
    }
  }

 private:
  // Of the worst output, where this layer alone is on integers.
  static double error_of(const Draft& draft, Evaluator& evaluator, const std::vector<std::string>& layers,
                         const std::string& layer) {
    auto alone = draft.prepared;
    for (const auto& id : layers) {
      if (id != layer) alone.leave_in_float(id, run::InFloat::inexact);
    }
    const auto& options = evaluator.options();
    auto model = alone.model;
    run::finish_integers(alone, options, model);
    const double sqnr_db =
        run::measured_by_first(options.resources, options.stop, [&] { return evaluator.deployed(model).sqnr_db; });
    return std::pow(10, -sqnr_db / 10);
  }

  // Together they may do as much harm as the other layers; under a target, use up half of what it allows.
  static double allowed(const Draft& draft, Evaluator& evaluator) {
    const auto& accuracy = evaluator.options().accuracy;
    if (accuracy.target && accuracy.metric == AccuracyMetric::sqnr) return std::pow(10, -*accuracy.target / 10) / 2;
    if (accuracy.target && accuracy.metric == AccuracyMetric::cosine) return 1 - *accuracy.target;
    if (draft.assignment.placement.marks.empty()) return kNearEnough;
    return std::max(kNearEnough, worst_error_of(evaluator.judged(draft)));
  }

  std::vector<std::pair<double, std::string>> errors_;  // of those that stay in float, worst first
};

// Trials for each sample, and the share of a value's error that a range may leave at most to be taken.
constexpr std::size_t kTrialsPerSample = 1;
constexpr std::size_t kLeastTrials = 16;
constexpr double kBetter = 0.9;

/// A range that a value could have instead.
struct Alternative {
  const quantization::Mark* mark = nullptr;
  bool is_own = false;  // the range that it has, measured for comparison
  CalibrationMethod method = CalibrationMethod::minmax;
  quantization::ActivationRange range;
  Rounding rounding;
};

// Choice of ranges: of the values that do most harm, each takes the range, among those of several calibration methods,
// that is measured to do least.
class RangeChoice : public Remedy {
 public:
  bool propose(const Draft& draft, Evaluator& evaluator) override {
    const auto alternatives = list_alternatives(draft, evaluator);
    if (alternatives.empty()) return false;
    std::vector<Trial> trials;
    for (const auto& alternative : alternatives) trials.push_back({{alternative.mark->value, &alternative.rounding}});
    const auto results = evaluator.run_near(draft, draft.assignment.values, trials, evaluator.near_samples());
    ranges_ = draft.proposals.ranges;
    errors_ = draft.sensitivities->errors;
    for (std::size_t i = 0; i < alternatives.size();) {
      const auto& value = alternatives[i].mark->value;
      const Alternative* best = nullptr;
      const auto own = errors_of(results[i++]);
      double change = kBetter;
      for (; i < alternatives.size() && alternatives[i].mark->value == value; ++i) {
        const double changed = mean_error_ratio(own, errors_of(results[i]));
        if (changed >= change) continue;
        change = changed;
        best = &alternatives[i];
      }
      if (best == nullptr) continue;
      adopt(draft.assignment.placement, *best);
      auto& errors = errors_.at(value);
      const double before = worst_of(errors);
      for (double& error : errors) error *= change;
      chosen_.push_back({value, std::string(calibration::method_name(best->method)), before, worst_of(errors)});
    }
    if (chosen_.empty()) return false;
    auto proposals = draft.proposals;
    proposals.ranges = ranges_;
    assignment_ =
        quantization::assign(draft.prepared.model, draft.assignment.placement, proposals, evaluator.options().config);
    return true;
  }

  bool is_better(const Draft& draft, Evaluator& evaluator) override {
    judged_ = evaluator.judge(draft, assignment_);
    return is_improved(errors_of(evaluator.judged(draft)), errors_of(judged_));
  }

  void keep(Draft& draft, Evaluator& evaluator) override {
    draft.proposals.ranges = std::move(ranges_);
    draft.sensitivities->errors = std::move(errors_);
    draft.assignment = std::move(assignment_);
    draft.result.methods = std::move(chosen_);
    evaluator.set_judged(std::move(judged_));
  }

 private:
  // As many as the inferences allow, those of one value together.
  static std::vector<Alternative> list_alternatives(const Draft& draft, Evaluator& evaluator) {
    const auto& placement = draft.assignment.placement;
    const std::size_t most = std::max(kTrialsPerSample * evaluator.samples(), kLeastTrials);
    std::vector<Alternative> all;
    for (const auto& [value, error] : by_error(*draft.sensitivities)) {
      if (error < kNegligibleError) break;
      const auto* mark = placement.find(value);
      const auto own = draft.proposals.ranges.find(value);
      if (mark->is_constant || mark->shares || own == draft.proposals.ranges.end()) continue;
      auto of_value = alternatives_of(draft, evaluator.options().config, *mark, own->second);
      if (of_value.empty() || of_value.back().is_own) continue;
      if (all.size() + of_value.size() > most) break;
      std::move(of_value.begin(), of_value.end(), std::back_inserter(all));
    }
    return all;
  }

  static std::vector<Alternative> alternatives_of(const Draft& draft, const QuantConfig& config,
                                                  const quantization::Mark& mark,
                                                  const quantization::ActivationRange& own) {
    std::vector<Alternative> found;
    found.push_back({&mark, true, {}, own, {draft.assignment.values.at(mark.value)}});
    for (const auto& [method, ranges] : draft.proposals.others) {
      const auto other = ranges.find(mark.value);
      if (other == ranges.end()) continue;
      const auto& range = other->second.range;
      if (range.min == own.range.min && range.max == own.range.max) continue;
      found.push_back(
          {&mark, false, method, other->second, {quantization::assign_activation(mark, other->second, config)}});
    }
    return found;
  }

  // For all values that have the range now.
  void adopt(const quantization::Placement& placement, const Alternative& chosen) {
    const auto& source = placement.source_of(chosen.mark->value);
    for (const auto& mark : placement.marks) {
      if (!mark.is_constant && placement.source_of(placement.root_of(mark).value) == source)
        ranges_[mark.value] = chosen.range;
    }
  }

  quantization::ActivationRanges ranges_;
  quantization::Assignment assignment_;
  MarkErrors errors_;
  std::vector<MethodChoice> chosen_;
  TrialResult judged_;
};

// Shares of the file: less is not worth any error, and not what products that fall back for their error bring anew.
constexpr double kWorthIt = 0.02, kWorthHarm = 0.1;

// What of a model's constants goes when the weights of these products are stored so.
double share_saved(const onnx::Model& model, const std::set<std::string>& products) {
  const auto weights = quantization::weights_of(model, products);
  double all = 0, saved = 0;
  for (const auto& tensor : model.graph.initializers) {
    const auto bytes = static_cast<double>(tensor.data.size());
    all += bytes;
    if (weights.contains(tensor.name)) saved += bytes * 3 / 4;
  }
  return all > 0 ? saved / all : 0;
}

// Products that compute in float, as this machine runs them faster so or since their rounding does most harm, keep
// their weights as integers of 8 bits that become floats when the model is loaded, where the results stay near enough.
class StoredProducts : public Remedy {
 public:
  bool propose(const Draft& draft, Evaluator& evaluator) override {
    const auto& config = evaluator.options().config;
    auto products = quantization::products_to_store(draft.prepared.model, config, draft.prepared.transposed);
    std::erase_if(products, [&](const auto& id) { return draft.prepared.keeps_in_float(id); });
    const auto& emitted = draft.emitted->model;
    products_ = quantization::products_in_float(emitted, products, draft.prepared.transposed);
    without_harm_ = products_;
    for (const auto n : draft.fallbacks) without_harm_.erase(draft.prepared.model.graph.nodes[n].id());
    const double worth = share_saved(emitted, without_harm_);
    if (share_saved(emitted, products_) - worth < kWorthHarm) products_ = without_harm_;
    if (worth < kWorthIt) without_harm_.clear();
    return share_saved(emitted, products_) >= kWorthIt;
  }

  bool is_better(const Draft& draft, Evaluator& evaluator) override {
    if (is_near_enough(draft, evaluator)) return true;
    if (without_harm_.empty() || without_harm_.size() == products_.size()) return false;
    products_ = std::move(without_harm_);
    return is_near_enough(draft, evaluator);
  }

  void keep(Draft& draft, Evaluator&) override {
    for (const auto& id : products_) draft.prepared.nodes[id].stored = true;
    draft.result.sqnr_db = std::min(draft.result.sqnr_db, sqnr_db_);
    draft.result.cosine = std::min(draft.result.cosine, cosine_);
  }

 private:
  bool is_near_enough(const Draft& draft, Evaluator& evaluator) {
    auto stored = draft;
    for (const auto& id : products_) stored.prepared.nodes[id].stored = true;
    const auto& accuracy = evaluator.options().accuracy;
    if (accuracy.target && evaluator.score(stored, stored.emitted->model) < *accuracy.target) return false;
    run::finish_integers(stored.prepared, evaluator.options(), stored.emitted->model);
    const double allowed = this->allowed(draft, evaluator);
    evaluator.release_trial_memory();  // the float model runs as deployed
    const auto& options = evaluator.options();
    sqnr_db_ = run::measured_by_first(options.resources, options.stop, [&] {
      const auto found = evaluator.deployed(stored.emitted->model);
      cosine_ = found.cosine;
      return found.sqnr_db;
    });
    return accuracy.target || std::pow(10, -sqnr_db_ / 10) <= allowed;
  }

  // Together they may do as much harm as all other roundings; and leave the results near enough in any case, unless
  // some of them fell back for less.
  double allowed(const Draft& draft, Evaluator& evaluator) const {
    if (draft.assignment.placement.marks.empty()) return kNearEnough;
    const double twice = 2 * worst_error_of(evaluator.judged(draft));
    const auto& nodes = draft.prepared.model.graph.nodes;
    const bool any_fell_back = std::any_of(draft.fallbacks.begin(), draft.fallbacks.end(),
                                           [&](auto n) { return products_.contains(nodes[n].id()); });
    return any_fell_back ? twice : std::max(kNearEnough, twice);
  }

  std::set<std::string> products_, without_harm_;  // by Node::id(); without those that fall back
  double sqnr_db_ = 0;
  double cosine_ = 1;  // known to rank 0 alone
};

}  // namespace

std::unique_ptr<Remedy> gates() { return std::make_unique<Gates>(); }
std::unique_ptr<Remedy> recurrent() { return std::make_unique<Recurrent>(); }
std::unique_ptr<Remedy> range_choice() { return std::make_unique<RangeChoice>(); }
std::unique_ptr<Remedy> stored_products() { return std::make_unique<StoredProducts>(); }

}  // namespace detent::remedies
