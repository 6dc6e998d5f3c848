#include "searching/front.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

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

namespace {

constexpr std::size_t kMostSteps = 1'000'000;
constexpr double kMostMachines = 1e15;
constexpr double kRounding = 1e-9;  // of the demand or the price

class Fleet {
 public:
  Fleet(std::span<const Offer> offers, double demand)
      : offers_(offers), slack_(kRounding * demand), order_(offers.size()), counts_(offers.size()) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::stable_sort(order_.begin(), order_.end(), [&](auto a, auto b) { return rate(a) < rate(b); });
    branch(0, demand, 0);
  }

  std::vector<std::uint64_t> best() && { return std::move(best_); }

 private:
  double rate(std::size_t offer) const { return offers_[offer].price / offers_[offer].capacity; }

  // As many as the demand takes of the offer at this position, then one less each time.
  void branch(std::size_t position, double demand, double price) {
    if (demand <= slack_) {
      best_price_ = price;
      best_ = counts_;
      return;
    }
    const auto offer = order_[position];
    const auto most =
        static_cast<std::uint64_t>(std::min(kMostMachines, std::ceil((demand - slack_) / offers_[offer].capacity)));
    for (auto count = most + 1; count-- > 0;) {
      const auto taken = static_cast<double>(count);
      const double left = demand - taken * offers_[offer].capacity, paid = price + taken * offers_[offer].price;
      const bool is_enough = left <= slack_, is_last = position + 1 == order_.size();
      if (!is_enough && is_last) break;
      const double further = is_enough ? 0 : left * rate(order_[position + 1]);
      if (++steps_ > kMostSteps) break;
      if (paid + further >= best_price_ * (1 - kRounding)) {
        if (is_enough) continue;  // the last machine may have had little to do
        break;                    // what fewer leave costs more elsewhere
      }
      counts_[offer] = count;
      branch(position + 1, left, paid);
    }
    counts_[offer] = 0;
  }

  std::span<const Offer> offers_;
  double slack_;
  std::vector<std::size_t> order_;  // cheapest load first
  std::vector<std::uint64_t> counts_, best_;
  double best_price_ = std::numeric_limits<double>::infinity();
  std::size_t steps_ = 0;
};

}  // namespace

std::vector<std::uint64_t> cheapest_fleet(std::span<const Offer> offers, double demand) {
  return Fleet(offers, demand).best();
}

// The page before and after its data; CMake writes both of front.html.
extern const std::string_view front_page_head;
extern const std::string_view front_page_tail;

std::string page(std::string_view json) {
  std::string text(front_page_head);
  text += json;
  text += front_page_tail;
  return text;
}

}  // namespace detent::searching
