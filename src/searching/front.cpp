#include "searching/front.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "searching/choice.h"

namespace detent::searching {
namespace {

constexpr int kSteps = 48;                              // of the price of error, from the lowest to the highest
constexpr double kLowest = 1e-2, kHighest = 1e8;        // beside a price of 1 for all seconds and bytes
constexpr double kLeastError = 1e-10, kDecibels = 100;  // errors below do not count; the range that counts as one

std::array<double, 3> normalized_costs(const Costs& costs, const Costs& whole) {
  const double decibels = 10 * std::log10(std::max(costs.error, kLeastError));
  return {decibels / kDecibels * 2, costs.seconds / std::max(whole.seconds, std::numeric_limits<double>::min()),
          costs.bytes / std::max(whole.bytes, std::numeric_limits<double>::min())};
}

double distance(const std::array<double, 3>& a, const std::array<double, 3>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

}  // namespace

bool dominates(const Costs& a, const Costs& b, double slack, const Margins& margins) {
  const auto no_worse = [&](double mine, double other) { return mine <= other * (1 + slack); };
  const auto better = [&](double mine, double other, double margin) { return mine < other * (1 - margin); };
  return no_worse(a.error, b.error) && no_worse(a.seconds, b.seconds) && no_worse(a.bytes, b.bytes) &&
         (better(a.error, b.error, margins.error) || better(a.seconds, b.seconds, margins.seconds) ||
          better(a.bytes, b.bytes, margins.bytes));
}

std::vector<FrontPoint> pareto_front(const Problem& problem, const Costs& whole) {
  std::set<Choice> known;
  std::vector<FrontPoint> points;
  for (const double share : {0.0, 0.2, 0.5, 0.8, 1.0}) {  // of the price that is of seconds
    for (int step = 0; step <= kSteps; ++step) {
      const double error = kLowest * std::pow(kHighest / kLowest, static_cast<double>(step) / kSteps);
      // Ties go to what is better in the other as well.
      constexpr double kLeast = 1e-3;
      const Prices prices{error, std::max(share, kLeast) / whole.seconds, std::max(1 - share, kLeast) / whole.bytes};
      auto choice = cheapest_choice(problem, prices);
      if (!known.insert(choice).second) continue;
      points.push_back({choice, costs_of(problem, choice)});
    }
  }
  std::vector<FrontPoint> left;
  for (const auto& point : points) {
    const bool excluded = std::any_of(points.begin(), points.end(),
                                      [&](const auto& other) { return dominates(other.costs, point.costs); });
    if (!excluded) left.push_back(point);
  }
  std::sort(left.begin(), left.end(), [](const auto& a, const auto& b) {
    return a.costs.error != b.costs.error ? a.costs.error > b.costs.error : a.choice < b.choice;
  });
  return left;
}

std::vector<std::size_t> most_spread_points(std::span<const Costs> points, std::span<const Costs> taken,
                                            const Costs& whole, std::size_t most) {
  std::vector<std::array<double, 3>> near;
  for (const auto& costs : taken) near.push_back(normalized_costs(costs, whole));
  std::vector<std::size_t> chosen;
  while (chosen.size() < std::min(most, points.size())) {
    double farthest = 0;
    std::size_t best = points.size();
    for (std::size_t p = 0; p < points.size(); ++p) {
      const auto place = normalized_costs(points[p], whole);
      double least = std::numeric_limits<double>::infinity();
      for (const auto& other : near) least = std::min(least, distance(place, other));
      if (least > farthest) {
        farthest = least;
        best = p;
      }
    }
    if (best == points.size()) break;  // all others lie where one is already
    chosen.push_back(best);
    near.push_back(normalized_costs(points[best], whole));
  }
  return chosen;
}

}  // namespace detent::searching
