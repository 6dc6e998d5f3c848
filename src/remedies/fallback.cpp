// Fallback: products that the integers do not serve stay in float, or get activations of 16 bits. With a target, as
// many as it takes to reach it and no more; without one, those that make most of the error, up to a tenth of the
// multiplications.
#include "remedies/fallback.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"
#include "config/targets.h"
#include "graph/execution.h"
#include "graph/patterns.h"
#include "graph/traits.h"
#include "quantization/placement/value_kinds.h"
#include "remedies/remedies.h"
#include "run/comparison/pairing.h"
#include "run/model/finish.h"

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
// Where float is one, so much of the time may go for being nearer, for choices that take away six times their share
// of the time of the error that is left. Where results are useless, all that integers save may go.
constexpr ChoiceLimits kFar{.macs = 0.25, .worth_removing = 0.05, .ratio = 6, .error = 1e-2};
constexpr double kRatioIfUseless = 0.3;
constexpr int kFarRounds = 3;
constexpr double kTimeRounding = 1e-6;
// Of the choices that reach a target, so many are tried without.
constexpr std::size_t kMostRemovals = 7;
// Front ends fall back whole, however many multiplications they have, where results are farther than this (30 dB; 20
// where none ends with a logarithm), if that makes at least this of their error (6 dB).
constexpr double kFarError = 1e-3, kOfUseError = 1e-2;
constexpr double kOfFrontEnd = 0.75;
constexpr double kNearlyFloat = 0.97;  // of the float model's time
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
    auto workload =
        workload_of(draft.prepared, *index_, evaluator.static_types(draft), draft.assignment.placement, all);
    macs_.clear();
    for (const auto& product : workload.products) macs_[product.node] = product.macs;
    if (accuracy().fallback == AccuracyFallback::float32) count_costs(workload);
    if (accuracy().target) {
      if (!reach(choose(workload, kNone), [this](const auto& choices) { return is_reached(choices); }))
        throw out_of_reach("activations of 16 bits do not reach", "or give --accuracy-fallback float32");
    } else {
      auto limits = kAutomatic;
      limits.macs *= 1 - workload.others;  // of those that are left: speed may have left many in float
      limits.macs = std::min(limits.macs, spare_time());
      choices_ = choose(workload, limits);
      add_front_ends(workload, limits);
      add_where_far(workload);
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
        if (!all && macs_of(choices_) > kAutomatic.macs && reaches(usual, run::kUselessDb)) choices_ = usual;
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
      const double macs = remedies::macs_of(draft.prepared.model, *index_, {choice.node, macs_.at(choice.node)});
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

  // The share of the model's time that float may add before it is as slow as the float model.
  double spare_time() const {
    const auto& times = draft_->prepared.times;
    if (times.chosen <= 0 || times.in_float <= 0) return std::numeric_limits<double>::infinity();
    return std::max(0.0, kNearlyFloat * times.in_float / times.chosen - 1);
  }

  // A product with few multiplications may take long in float, with the conversions around it. Where the processor
  // computes in float either way, bytes are what integers are for.
  void count_costs(Workload& workload) {
    const auto& prepared = draft_->prepared;
    const auto& config = evaluator_->options().config;
    const bool by_size =
        is_float(config.activation_type) ||
        (config::target(config).is_ort_cpu && onnx::bits_of(quantization::data_type(config.activation_type)) > 8);
    const auto all = static_cast<double>(graph::constant_bytes(prepared.model));
    for (auto& product : workload.products) {
      const auto& node = prepared.model.graph.nodes[product.node];
      const auto added = prepared.added_in_float.find(node.id());
      double cost = added == prepared.added_in_float.end() ? 0 : added->second;
      if (by_size && all > 0)
        cost = std::max(cost, static_cast<double>(graph::constant_bytes(prepared.model, *index_, node)) / all);
      product.macs = std::max(product.macs, cost);
    }
  }

  std::vector<FallbackChoice> choose(const Workload& workload, const ChoiceLimits& limits,
                                     std::vector<FallbackChoice> before = {}) const {
    return choose(workload.products, expected_errors(), limits, std::move(before));
  }

  std::vector<FallbackChoice> choose(std::vector<Candidate> products, const MarkErrors& errors,
                                     const ChoiceLimits& limits, std::vector<FallbackChoice> before) const {
    for (const auto& choice : before) {
      std::erase_if(products, [&](const auto& product) { return product.node == choice.node; });
    }
    const auto first = nodes_of(before);
    const auto place_more = [&](auto nodes) {
      nodes.insert(nodes.begin(), first.begin(), first.end());
      return place(nodes);
    };
    const auto chosen = choose_fallbacks(products, errors, place_more, limits);
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

  // Results far from the float model's are worth time that integers saved.
  void add_where_far(const Workload& workload) {
    const auto& times = draft_->prepared.times;
    const auto& added = draft_->prepared.added_in_float;
    if (accuracy().fallback != AccuracyFallback::float32 || !config::target(evaluator_->options().config).is_ort_cpu)
      return;
    auto products = workload.products;
    std::map<std::size_t, double> time;
    for (auto& product : products) {
      const auto known = added.find(draft_->prepared.model.graph.nodes[product.node].id());
      if (known != added.end()) product.macs = known->second;
      time[product.node] = product.macs;
    }
    auto judged = judge_with(choices_);
    for (int round = 0; round < kFarRounds; ++round) {
      const double error = worst_error_of(judged);
      if (error <= kFar.error) return;
      const bool is_useless = error > run::kUselessError;
      auto limits = kFar;
      limits.macs = std::min(kFar.macs, spare_time());
      if (is_useless) {
        limits.macs = times.chosen > 0 ? times.in_float / times.chosen - 1 : 1;
        limits.ratio = kRatioIfUseless;
      }
      limits.macs += kTimeRounding;
      for (const auto& choice : choices_) limits.macs -= time.at(choice.node);
      auto more = choose(products, expected_errors(choices_, judged), limits, choices_);
      if (more.size() == choices_.size()) return;
      judged = judge_with(more);
      if (worst_error_of(judged) >= error) return;
      choices_ = std::move(more);
    }
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

  TrialResult judge_with(const std::vector<FallbackChoice>& choices) const {
    return choices.empty() ? evaluator_->judged(*draft_) : evaluator_->judge(*draft_, assign_with(choices));
  }

  double error_with(const std::vector<FallbackChoice>& choices) const { return worst_error_of(judge_with(choices)); }

  // The errors of single values, in proportion, so that they add up to no less than the error of all together that is
  // left with these choices.
  MarkErrors expected_errors() const { return expected_errors({}, evaluator_->judged(*draft_)); }

  MarkErrors expected_errors(const std::vector<FallbackChoice>& choices, const TrialResult& judged) const {
    auto errors = draft_->sensitivities->errors;
    const auto all = errors_of(judged);
    const auto sum = predicted_error(choices.empty() ? draft_->assignment.placement : place(nodes_of(choices)), errors);
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
  std::map<std::size_t, double> macs_;  // of products; what a choice costs may be more, or less
  quantization::Assignment assignment_;
  TrialResult all_, chosen_;
};

}  // namespace

std::unique_ptr<Remedy> fallback() { return std::make_unique<Fallback>(); }

PointErrors predicted_error(const quantization::Placement& placement, const MarkErrors& errors) {
  PointErrors sum(errors.empty() ? 0 : errors.begin()->second.size());
  for (const auto& mark : placement.marks) {
    const auto found = errors.find(mark.value);
    if (found == errors.end() || mark.wide) continue;
    std::transform(sum.begin(), sum.end(), found->second.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

double removed_share(const PointErrors& before, const PointErrors& after, const PointErrors& whole, double enough) {
  double share = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i] > enough && whole[i] > 0) share = std::max(share, (before[i] - after[i]) / whole[i]);
  }
  return share;
}

namespace {

// A product without multiplications to count still costs something.
constexpr double kLeastMacs = 1e-4;
// Products that did not fit, of which the choice is tried again with each as the first.
constexpr std::size_t kSecondThoughts = 3;
// With neighbours in float a product may take away more than alone, at most so many times: pairs between them go too.
// What is not even then the best choice need not be placed to know.
constexpr double kWithNeighbours = 3;

class Chooser {
 public:
  Chooser(const MarkErrors& errors, const Place& place, const ChoiceLimits& limits)
      : errors_(errors), place_(place), limits_(limits), whole_(predicted_error(place({}), errors)) {}

  /// Of each candidate, what it takes away alone; to be called once.
  void measure_each_alone(const std::vector<Candidate>& candidates) {
    for (const auto& candidate : candidates) {
      auto& alone = alone_[candidate.node] = whole_;
      const auto left = predicted_error(place_({candidate.node}), errors_);
      for (std::size_t i = 0; i < alone.size(); ++i) alone[i] -= left[i];
    }
  }

  struct Choices {
    std::vector<FallbackChoice> taken;
    std::vector<Candidate> left;
    PointErrors error;
  };

  Choices choose(std::vector<Candidate> candidates, const Candidate* first) const {
    Choices c{{}, std::move(candidates), whole_};
    double macs = 0;
    if (first != nullptr) take(c, macs, *first, error_with(c, *first));
    while (!c.left.empty() && !is_enough(c.error)) {
      const Candidate* best = nullptr;
      double best_gain = 0;
      PointErrors best_error;
      for (const auto& [most, candidate] : by_most_gain(c)) {
        if (most <= best_gain) break;
        if (macs + candidate->macs > limits_.macs) continue;
        auto error = error_with(c, *candidate);
        const double removed = removed_by(c, error);
        if (!is_worth_it(removed, *candidate)) continue;
        const double gain = gain_of(removed, *candidate);
        if (gain <= best_gain) continue;
        best = candidate;
        best_gain = gain;
        best_error = std::move(error);
      }
      if (best == nullptr) break;
      take(c, macs, *best, std::move(best_error));
    }
    return c;
  }

  // Of those left that would have been worth it but for the limit of multiplications, the ones that take away most.
  std::vector<Candidate> left_for_lack_of_room(const Choices& c) const {
    std::vector<std::pair<double, Candidate>> found;
    for (const auto& candidate : c.left) {
      if (candidate.macs > limits_.macs || !is_worth_it(most_removed(c, candidate), candidate)) continue;
      const double removed = removed_by(c, error_with(c, candidate));
      if (is_worth_it(removed, candidate)) found.emplace_back(removed, candidate);
    }
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<Candidate> candidates;
    for (std::size_t i = 0; i < std::min(found.size(), kSecondThoughts); ++i) candidates.push_back(found[i].second);
    return candidates;
  }

 private:
  bool is_worth_it(double removed, const Candidate& candidate) const {
    return removed > 0 && removed >= std::max(limits_.worth_removing, limits_.ratio * candidate.macs);
  }

  static double gain_of(double removed, const Candidate& candidate) {
    return removed / std::max(candidate.macs, kLeastMacs);
  }

  double most_removed(const Choices& c, const Candidate& candidate) const {
    auto left = c.error;
    const auto& alone = alone_.at(candidate.node);
    for (std::size_t i = 0; i < left.size(); ++i) left[i] = std::max(left[i] - kWithNeighbours * alone[i], 0.0);
    return removed_by(c, left);
  }

  // Those that may be worth it, by the most that they may gain.
  std::vector<std::pair<double, const Candidate*>> by_most_gain(const Choices& c) const {
    std::vector<std::pair<double, const Candidate*>> order;
    for (const auto& candidate : c.left) {
      const double removed = most_removed(c, candidate);
      if (is_worth_it(removed, candidate)) order.emplace_back(gain_of(removed, candidate), &candidate);
    }
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    return order;
  }

  bool is_enough(const PointErrors& error) const {
    return std::none_of(error.begin(), error.end(), [&](double e) { return e > limits_.error; });
  }

  double removed_by(const Choices& c, const PointErrors& error) const {
    return removed_share(c.error, error, whole_, limits_.error);
  }

  PointErrors error_with(const Choices& c, const Candidate& candidate) const {
    std::vector<std::size_t> nodes;
    for (const auto& choice : c.taken) nodes.push_back(choice.node);
    nodes.push_back(candidate.node);
    return predicted_error(place_(nodes), errors_);
  }

  void take(Choices& c, double& macs, Candidate candidate, PointErrors error) const {
    c.taken.push_back({candidate.node, candidate.macs, removed_by(c, error)});
    c.error = std::move(error);
    macs += candidate.macs;
    std::erase_if(c.left, [&](const auto& other) { return other.node == candidate.node; });
  }

  const MarkErrors& errors_;
  const Place& place_;
  const ChoiceLimits& limits_;
  PointErrors whole_;
  std::unordered_map<std::size_t, PointErrors> alone_;
};

}  // namespace

std::vector<FallbackChoice> choose_fallbacks(const std::vector<Candidate>& candidates, const MarkErrors& errors,
                                             const Place& place, const ChoiceLimits& limits) {
  Chooser chooser(errors, place, limits);
  chooser.measure_each_alone(candidates);
  auto best = chooser.choose(candidates, nullptr);
  for (const auto& first : chooser.left_for_lack_of_room(best)) {
    auto other = chooser.choose(candidates, &first);
    if (removed_share(best.error, other.error, best.error, 0) > removed_share(other.error, best.error, other.error, 0))
      best = std::move(other);
  }
  return best.taken;
}

namespace {

constexpr double kTable = 1;  // the cost of a table, as a share of the multiplications: dear

}  // namespace

Workload workload_of(const run::Prepared& prepared, const graph::Index& index, const graph::ValueTypes& types,
                     const quantization::Placement& placement, bool all_operators) {
  const auto& model = prepared.model;
  Workload workload;
  std::size_t with_work = 0;
  double all = 0, others = 0;
  const auto& nodes = model.graph.nodes;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (prepared.is_unseen(nodes[n].id())) continue;
    const auto work = graph::work_of(model, index, types, nodes[n]);
    const double macs = work ? static_cast<double>(work->macs) : 0;
    all += macs;
    if (!work && graph::is_product(nodes[n])) workload.is_known = false;
    if (placement.selected[n] && quantization::is_table(nodes[n], index)) {
      workload.products.push_back({n, kTable});
    } else if (placement.selected[n] && graph::is_product(nodes[n])) {
      workload.products.push_back({n, macs});
      ++with_work;
    } else if (placement.selected[n] && all_operators) {
      workload.products.push_back({n, 0});
      others += macs;
    } else {
      others += macs;
    }
  }
  for (auto& product : workload.products) {
    if (!graph::is_product(nodes[product.node])) continue;
    // Where no shape is known, all count alike.
    product.macs = all > 0 ? product.macs / all : 1 / static_cast<double>(with_work);
  }
  workload.others = all > 0 ? others / all : 0;
  return workload;
}

double recurrent_macs(const run::Prepared& prepared, const graph::Index& index, const graph::ValueTypes& types,
                      const QuantConfig& config) {
  const auto& model = prepared.model;
  const auto macs_at = [&](const onnx::Node& node) {
    const auto work = prepared.is_unseen(node.id()) ? std::nullopt : graph::work_of(model, index, types, node);
    return work ? static_cast<double>(work->macs) : 0;
  };
  double all = 0, recurrent = 0;
  for (const auto& node : model.graph.nodes) all += macs_at(node);
  for (const auto n : run::recurrent_layers(prepared, config)) recurrent += macs_at(model.graph.nodes[n]);
  return all > 0 ? recurrent / all : 0;
}

double macs_of(const onnx::Model& model, const graph::Index& index, const Candidate& candidate) {
  return quantization::is_table(model.graph.nodes[candidate.node], index) ? 0 : candidate.macs;
}

double macs_of_16_bits(const onnx::Model& model, const graph::Index& index, const Workload& workload,
                       const quantization::Placement& placement) {
  std::set<std::string> wide;
  for (const auto& mark : placement.marks) {
    if (mark.wide) wide.insert(mark.value);
  }
  double sum = 0;
  for (const auto& product : workload.products) {
    const auto& inputs = model.graph.nodes[product.node].inputs();
    if (std::any_of(inputs.begin(), inputs.end(), [&](const auto& value) { return wide.contains(value); }))
      sum += macs_of(model, index, product);
  }
  return sum;
}

}  // namespace detent::remedies
