// Choice of ranges: of the values that do most harm, each takes the range, among those of several calibration methods,
// that is measured to do least.
#include <iterator>
#include <utility>

#include "calibration/methods.h"
#include "remedies/remedies.h"
#include "remedies/remedy.h"

namespace detent::remedies {
namespace {

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

}  // namespace

std::unique_ptr<Remedy> range_choice() { return std::make_unique<RangeChoice>(); }

}  // namespace detent::remedies
