// Gates in integers: x * Sigmoid(x) behind a convolution takes the runtime less than half the time there, and the
// chains do not end at it. What the additional roundings do is measured for groups of gates that follow one another;
// those that do least go to integers, as many as the results allow.
#include "quantization/placement/gated_activations.h"
#include "base/bytes.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "graph/index.h"
#include "remedies/remedies.h"
#include "remedies/remedy.h"

namespace detent::remedies {
namespace {

// An output that stays nearer than this (35 dB) may lose; others may lose so much (1 dB).
constexpr double kNear = 3.2e-4;
constexpr double kMayGrow = 1.26;
// Each group is measured by itself, on so many samples.
constexpr std::size_t kMostGroups = 8;
constexpr std::size_t kMostSamples = 2;

class Gates : public Remedy {
 public:
  bool propose(const Draft& draft, Evaluator& evaluator) override {
    const auto& model = draft.prepared.model;
    const graph::Index index(model);
    const auto every = quantization::all_gates(model, index);
    const auto whole = assign(draft, evaluator, every);
    for (const auto& gate : quantization::find_gated_activations(model, index)) {
      const auto n = static_cast<std::size_t>(gate.sigmoid);
      if (whole.placement.selected[n]) gates_.push_back(model.graph.nodes[n].outputs().front());
    }
    if (gates_.empty()) return false;
    before_ = errors_of(evaluator.judged(draft));
    for (const double error : before_) allowed_.push_back(std::max(kNear, kMayGrow * error));
    added_ = measure(draft, evaluator, whole, index);
    return true;
  }

  bool is_better(const Draft& draft, Evaluator& evaluator) override {
    // Errors of single groups add up only roughly.
    for (const double share : {1.0, 0.5}) {
      chosen_ = choose(share);
      if (chosen_.empty()) return false;
      assignment_ = assign(draft, evaluator, chosen_);
      judged_ = evaluator.judge(draft, assignment_);
      const auto errors = errors_of(judged_);
      if (std::equal(errors.begin(), errors.end(), allowed_.begin(), std::less_equal<>())) return true;
    }
    return false;
  }

  void keep(Draft& draft, Evaluator& evaluator) override {
    draft.notes.push_back("computed in integers: " + count_with_noun(chosen_.size(), "gate"));
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

  std::size_t group_size() const { return (gates_.size() + kMostGroups - 1) / kMostGroups; }

  // What each group adds: roundings that are not there, or that only quantized nodes see, with all gates in float.
  std::vector<PointErrors> measure(const Draft& draft, Evaluator& evaluator, const quantization::Assignment& whole,
                                   const graph::Index& index) const {
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
    std::vector<PointErrors> added;
    for (const auto& result : evaluator.run(draft, whole.values, trials, samples, {}, &whole.placement))
      added.push_back(errors_of(result));
    return added;
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

}  // namespace

std::unique_ptr<Remedy> gates() { return std::make_unique<Gates>(); }

}  // namespace detent::remedies
