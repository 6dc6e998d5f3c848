#include "remedies/fallback_choice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

namespace detent::remedies {

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

}  // namespace detent::remedies
