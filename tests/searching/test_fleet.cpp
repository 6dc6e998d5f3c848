#include "searching/front.h"

#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>

namespace detent::searching {
namespace {

double some(std::mt19937& random, double least, double most) {
  return least + (most - least) * static_cast<double>(random()) / 4294967296.0;
}

double price_of(const std::vector<Offer>& offers, const std::vector<std::uint64_t>& counts) {
  double price = 0;
  for (std::size_t o = 0; o < offers.size(); ++o) price += static_cast<double>(counts[o]) * offers[o].price;
  return price;
}

double capacity_of(const std::vector<Offer>& offers, const std::vector<std::uint64_t>& counts) {
  double capacity = 0;
  for (std::size_t o = 0; o < offers.size(); ++o) capacity += static_cast<double>(counts[o]) * offers[o].capacity;
  return capacity;
}

double least_of_all(const std::vector<Offer>& offers, double demand) {
  double least = std::numeric_limits<double>::infinity();
  const std::function<void(std::size_t, double, double)> go = [&](std::size_t o, double left, double price) {
    if (left <= 0) {
      least = std::min(least, price);
    } else if (o < offers.size()) {
      go(o, left - offers[o].capacity, price + offers[o].price);
      go(o + 1, left, price);
    }
  };
  go(0, demand, 0);
  return least;
}

TEST(Fleet, IsTheCheapestOfAll) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<Offer> offers(1 + random() % 4);
    for (auto& offer : offers) offer = {some(random, 1, 6), some(random, 0, 5)};
    const double demand = some(random, 0.5, 20);
    const auto counts = cheapest_fleet(offers, demand);
    EXPECT_GE(capacity_of(offers, counts), demand * (1 - 1e-6)) << round;
    EXPECT_NEAR(price_of(offers, counts), least_of_all(offers, demand), 1e-6) << round;
  }
}

TEST(Fleet, LargeLoadsAndEqualMachinesEnd) {
  const std::vector<Offer> equal(6, Offer{3, 1});
  EXPECT_EQ(price_of(equal, cheapest_fleet(equal, 3e6)), 1e6);
  const std::vector<Offer> some_free{{2, 0}, {5, 1}};
  EXPECT_EQ(cheapest_fleet(some_free, 9), (std::vector<std::uint64_t>{5, 0}));
}

TEST(Fleet, IsEmptyWhereNobodyHasSoMany) {
  for (const double demand : {1e16, 1e300, std::numeric_limits<double>::max()})
    EXPECT_TRUE(cheapest_fleet(std::vector<Offer>{{1, 1}}, demand).empty()) << demand;
  EXPECT_TRUE(cheapest_fleet(std::vector<Offer>{{1e-300, 1}, {1e-301, 0}}, 1).empty());
  EXPECT_EQ(cheapest_fleet(std::vector<Offer>{{1, 1e12}}, 1e6), (std::vector<std::uint64_t>{1'000'000}));
}

}  // namespace
}  // namespace detent::searching
