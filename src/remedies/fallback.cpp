// Fallback: products that the integers do not serve stay in float, or get activations of 16 bits. With a target, as
// many as it takes to reach it and no more; without one, those that make most of the error, up to a tenth of the
// multiplications.
#include "remedies/fallback_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "base/error.h"
#include "config/targets.h"
#include "graph/front_end.h"
#include "graph/index.h"
#include "remedies/remedies.h"
#include "remedies/workload.h"
#include "run/model/finish_integers.h"

namespace detent::remedies {
namespace {

// Choices must take away at least 1 % of the error and three times their share of the multiplications, until the error
// is below 0.01 % (40 dB).
constexpr ChoiceLimits kAutomatic{.macs = 0.1, .worth_removing = 0.01, .ratio = 3, .error = 1e-4};
constexpr ChoiceLimits kNone{
    .macs = std::numeric_limits<double>::infinity(), .worth_removing = 0, .ratio = 0, .error = 0};
// Results that are farther from the float model's are of no use. Where float is no way out, as many fall back to 16
// bits as it takes to be nearer.
constexpr double kOfUseDb = 20;
// Of the choices that reach a target, so many are tried without.
constexpr std::size_t kMostRemovals = 7;
// Front ends fall back whole, however many multiplications they have, where results are farther than this (30 dB; 20
// where none ends with a logarithm), if that makes at least this of their error (6 dB).
constexpr double kFarError = 1e-3, kOfUseError = 1e-2;
constexpr double kOfFrontEnd = 0.75;
// And so much may it grow again (0.5 dB) with a part of them in integers, if the results are farther still.
constexpr double kMayGrow = 1.12;

class Fallback : public Remedy {
 public:
  bool propose(const Draft& draft, Evaluator& evaluator) override {
    draft_ = &draft;
    evaluator_ = &evaluator;
    const auto& model = draft.prepared.model;
    index_.emplace(model);
    // Where float is no way out, what errs may be any operator, as a logarithm of small values.
    const bool all = config::target(evaluator.options().config).all_operators;
    const auto workload = workload_of(model, *index_, evaluator.static_types(draft), draft.assignment.placement,
                                      draft.prepared.unseen, all);
    if (accuracy().target) {
      if (!reach(choose(workload, kNone), [this](const auto& choices) { return is_reached(choices); }))
        throw out_of_reach("activations of 16 bits do not reach", "or give --accuracy-fallback float32");
    } else {
      auto limits = kAutomatic;
      limits.macs *= 1 - workload.others;  // of those that are left: speed may have left many in float
      choices_ = choose(workload, limits);
      add_front_ends(workload, limits);
      const auto reaches = [this](const auto& choices, double db) {
        return worst_sqnr_db(evaluator_->judge(*draft_, assign_with(choices))) >= db;
      };
      const auto is_of_use = [&](const auto& choices) { return reaches(choices, kOfUseDb); };
      // The errors of single values do not add up where they are that large.
      const bool has_way = !all || accuracy().fallback == AccuracyFallback::int16;
      if (has_way && !config::target(evaluator.options().config).is_ort_cpu && !is_of_use(choices_)) {
        const auto usual = choices_;
        reach(choose(workload, kNone), is_of_use);
        // More multiplications in float than usual, where nothing less leaves results at all.
        if (!all && macs_of(choices_) > kAutomatic.macs && reaches(usual, kUselessDb)) choices_ = usual;
      }
    }
    assignment_ = assign_with(choices_);
    if (accuracy().target && assignment_.placement.marks.empty())
      throw out_of_reach("only the float model reaches", "or give --activation-type uint16");
    return !choices_.empty();
  }

  bool is_better(const Draft& draft, Evaluator& evaluator) override {
    all_ = evaluator.judged(draft);
    chosen_ = evaluator.judge(draft, assignment_);
    return accuracy().target || is_improved(errors_of(all_), errors_of(chosen_));
  }

  void keep(Draft& draft, Evaluator& evaluator) override {
    auto& result = draft.result;
    const bool in_float = accuracy().fallback == AccuracyFallback::float32;
    for (const auto& choice : choices_) {
      const double macs = remedies::macs_of(draft.prepared.model, *index_, {choice.node, choice.macs});
      (in_float ? result.float_nodes : result.wide_nodes)
          .push_back({draft.prepared.model.graph.nodes[choice.node].label(), choice.removed, macs});
    }
    draft.fallbacks = nodes_of(choices_);
    draft.assignment = std::move(assignment_);
    evaluator.set_judged(std::move(chosen_));
  }

 private:
  const AccuracyConfig& accuracy() const { return evaluator_->options().accuracy; }

  Error out_of_reach(const char* what, const char* suggestion) const {
    const std::string worst = by_error(*draft_->sensitivities).front().first;
    return bad_input(fmt::format("--accuracy-target: {} {}; the worst is {}", what, *accuracy().target,
                                 node_of(draft_->prepared.model, *index_, worst)),
                     fmt::format("lower the target, {}; --set sensitivity=report tells more", suggestion));
  }

  std::vector<FallbackChoice> choose(const Workload& workload, const ChoiceLimits& limits,
                                     std::vector<FallbackChoice> before = {}) const {
    auto products = workload.products;
    for (const auto& choice : before) {
      std::erase_if(products, [&](const auto& product) { return product.node == choice.node; });
    }
    const auto first = nodes_of(before);
    const auto place_more = [&](auto nodes) {
      nodes.insert(nodes.begin(), first.begin(), first.end());
      return place(nodes);
    };
    const auto chosen = choose_fallbacks(products, expected_errors(), place_more, limits);
    before.insert(before.end(), chosen.begin(), chosen.end());
    return before;
  }

  // A logarithm, a division or a power makes large what small values lose to the integers of large ones, and what
  // follows cannot tell it from a signal. The transform and the filters before it have most of the multiplications of
  // a small model, and serve only together.
  void add_front_ends(const Workload& workload, const ChoiceLimits& limits) {
    auto choices = front_ends(workload, graph::FrontEnds::all);
    if (choices.empty()) return;
    const double before = error_with(choices_);
    if (before <= kOfUseError) choices = front_ends(workload, graph::FrontEnds::logarithms);
    if (before <= kFarError || choices.empty()) return;
    choices = choose(workload, limits, std::move(choices));
    const double after = error_with(choices);
    if (after > (1 - kOfFrontEnd) * before) return;
    choices_ = std::move(choices);
    remove_unneeded([&](const auto& fewer) { return error_with(fewer) <= std::max(kFarError, kMayGrow * after); });
  }

  // Empty where they do not make most of the error of an output.
  std::vector<FallbackChoice> front_ends(const Workload& workload, graph::FrontEnds which) const {
    const auto nodes = graph::front_end(draft_->prepared.model, *index_, which);
    const auto errors = expected_errors();
    const auto whole = predicted_error(place({}), errors);
    auto left = whole;
    std::vector<FallbackChoice> choices;
    for (const auto& product : workload.products) {
      if (!nodes.contains(product.node)) continue;
      choices.push_back({product.node, product.macs, 0});
      auto without = predicted_error(place(nodes_of(choices)), errors);
      choices.back().removed = removed_share(left, without, whole, 0);
      left = std::move(without);
    }
    if (removed_share(whole, left, whole, kFarError) < kOfFrontEnd) choices.clear();
    return choices;
  }

  double error_with(const std::vector<FallbackChoice>& choices) const {
    return worst_error_of(evaluator_->judge(*draft_, assign_with(choices)));
  }

  // The errors of single values, in proportion, so that they add up to no less than the error of all together.
  MarkErrors expected_errors() const {
    auto errors = draft_->sensitivities->errors;
    const auto all = errors_of(evaluator_->judged(*draft_));
    const auto sum = predicted_error(draft_->assignment.placement, errors);
    for (auto& [mark, of_points] : errors) {
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (sum[i] > 0) of_points[i] *= std::max(1.0, all[i] / sum[i]);
      }
    }
    return errors;
  }

  static double macs_of(const std::vector<FallbackChoice>& choices) {
    double sum = 0;
    for (const auto& choice : choices) sum += choice.macs;
    return sum;
  }

  static std::vector<std::size_t> nodes_of(const std::vector<FallbackChoice>& choices) {
    std::vector<std::size_t> nodes;
    for (const auto& choice : choices) nodes.push_back(choice.node);
    return nodes;
  }

  quantization::Placement place(const std::vector<std::size_t>& nodes) const {
    return run::place_qdq_pairs(draft_->prepared, evaluator_->options().config, {accuracy().fallback, nodes});
  }

  quantization::Assignment assign_with(const std::vector<FallbackChoice>& choices) const {
    return quantization::assign(draft_->prepared.model, place(nodes_of(choices)), draft_->proposals,
                                evaluator_->options().config);
  }

  using Reaches = std::function<bool(const std::vector<FallbackChoice>&)>;

  // Chooses the fewest, taken from the front, that reach what is wanted; of those, the ones that are not needed after
  // all go again, the most expensive first. False: all of them do not reach it.
  bool reach(const std::vector<FallbackChoice>& order, const Reaches& reaches) {
    choices_.clear();
    if (reaches({})) return true;
    choices_ = order;
    // In float, all of them are the float model.
    if (accuracy().fallback != AccuracyFallback::float32 && !reaches(order)) return false;
    std::size_t low = 0, high = order.size();  // not enough, enough
    while (high - low > 1) {
      const std::size_t middle = (low + high) / 2;
      (reaches({order.begin(), order.begin() + static_cast<std::ptrdiff_t>(middle)}) ? high : low) = middle;
    }
    choices_.resize(high);
    remove_unneeded(reaches);
    return true;
  }

  void remove_unneeded(const Reaches& reaches) {
    std::vector<FallbackChoice> by_cost = choices_;
    std::stable_sort(by_cost.begin(), by_cost.end(), [](const auto& a, const auto& b) { return a.macs > b.macs; });
    for (std::size_t i = 0; i < std::min(by_cost.size(), kMostRemovals); ++i) {
      auto fewer = choices_;
      std::erase_if(fewer, [&](const auto& choice) { return choice.node == by_cost[i].node; });
      if (reaches(fewer)) choices_ = std::move(fewer);
    }
  }

  bool is_reached(const std::vector<FallbackChoice>& choices) {
    const auto assignment = assign_with(choices);
    const auto& config = evaluator_->options().config;
    const bool is_float = assignment.placement.marks.empty() && !run::changes_recurrent(draft_->prepared, config);
    return is_float || evaluator_->score(*draft_, assignment) >= *accuracy().target;
  }

  const Draft* draft_ = nullptr;
  Evaluator* evaluator_ = nullptr;
  std::optional<graph::Index> index_;
  std::vector<FallbackChoice> choices_;
  quantization::Assignment assignment_;
  TrialResult all_, chosen_;
};

}  // namespace

std::unique_ptr<Remedy> fallback() { return std::make_unique<Fallback>(); }

}  // namespace detent::remedies
