#include "searching/fleet.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>

namespace detent::searching {
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

}  // namespace detent::searching
