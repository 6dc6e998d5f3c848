#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <random>

#include "searching/choice.h"
#include "searching/front.h"

namespace detent::searching {
namespace {

double some(std::mt19937& random, double most) { return most * static_cast<double>(random()) / 4294967296.0; }

// Up to six products with up to five forms, and conversions where neighbours differ.
Problem random_problem(std::mt19937& random) {
  Problem problem;
  const std::size_t layers = 1 + random() % 6;
  for (std::size_t l = 0; l < layers; ++l) {
    auto& forms = problem.layers.emplace_back();
    const std::size_t count = 1 + random() % 5;
    for (std::size_t f = 0; f < count; ++f)
      forms.push_back({some(random, 1e-2) * some(random, 1), some(random, 1e-3), some(random, 1e6)});
  }
  for (std::size_t from = 0; from < layers; ++from) {
    for (std::size_t to = from + 1; to < layers; ++to) {
      if (to != from + 1 && random() % 3 != 0) continue;
      Border border{from, to, {}};
      for (std::size_t a = 0; a < problem.layers[from].size(); ++a) {
        auto& row = border.seconds.emplace_back();
        for (std::size_t b = 0; b < problem.layers[to].size(); ++b) row.push_back(a == b ? 0 : some(random, 4e-4));
      }
      problem.borders.push_back(std::move(border));
    }
  }
  return problem;
}

Prices random_prices(std::mt19937& random) { return {some(random, 2e3), some(random, 1e3), some(random, 1e-6)}; }

double best_of_all(const Problem& problem, const Prices& prices) {
  double least = std::numeric_limits<double>::infinity();
  Choice choice(problem.layers.size());
  while (true) {
    least = std::min(least, price_of(costs_of(problem, choice), prices));
    std::size_t l = 0;
    for (; l < choice.size(); ++l) {
      if (++choice[l] < problem.layers[l].size()) break;
      choice[l] = 0;
    }
    if (l == choice.size()) return least;
  }
}

TEST(Choice, is_the_best_of_all_on_random_graphs_and_prices) {
  std::mt19937 random(1);
  for (int graph = 0; graph < 40; ++graph) {
    const auto problem = random_problem(random);
    for (int round = 0; round < 20; ++round) {
      const auto prices = random_prices(random);
      const double best = best_of_all(problem, prices);
      EXPECT_NEAR(price_of(costs_of(problem, cheapest_choice(problem, prices)), prices), best, 1e-9 * best);
    }
  }
}

TEST(Choice, by_expansion_is_near_the_best_of_all) {
  std::mt19937 random(2);
  double worst = 0, sum = 0;
  int count = 0;
  for (int graph = 0; graph < 40; ++graph) {
    const auto problem = random_problem(random);
    for (int round = 0; round < 20; ++round) {
      const auto prices = random_prices(random);
      const double best = best_of_all(problem, prices);
      const double excess = price_of(costs_of(problem, expand(problem, prices)), prices) / best - 1;
      worst = std::max(worst, excess);
      sum += excess;
      ++count;
    }
  }
  EXPECT_LT(sum / count, 0.02);
  EXPECT_LT(worst, 1);  // the known bound
}

TEST(Choice, of_two_forms_by_expansion_is_exact) {
  std::mt19937 random(3);
  for (int graph = 0; graph < 100; ++graph) {
    auto problem = random_problem(random);
    for (auto& forms : problem.layers) forms.resize(2, {some(random, 1e-2), some(random, 1e-3), some(random, 1e6)});
    for (auto& border : problem.borders) border.seconds = {{0, some(random, 1e-3)}, {some(random, 1e-3), 0}};
    const auto prices = random_prices(random);
    const double best = best_of_all(problem, prices);
    EXPECT_NEAR(price_of(costs_of(problem, expand(problem, prices)), prices), best, 1e-6 * best);
  }
}

TEST(Choice, goes_on_by_expansion_where_tables_grow_too_large) {
  std::mt19937 random(4);
  const auto problem = random_problem(random);
  const auto prices = random_prices(random);
  EXPECT_FALSE(eliminate(problem, prices, 1));
  EXPECT_EQ(cheapest_choice(problem, prices, 1), expand(problem, prices));
}

TEST(Choice, of_a_long_chain_with_skips_is_found_at_once) {
  std::mt19937 random(5);
  Problem problem;
  for (std::size_t l = 0; l < 2000; ++l) {
    problem.layers.push_back({{0, some(random, 1), 4}, {some(random, 1), some(random, 1), 1}});
    if (l > 0) problem.borders.push_back({l - 1, l, {{0, 0.1}, {0.1, 0}}});
    if (l > 3) problem.borders.push_back({l - 4, l, {{0, 0.1}, {0.1, 0}}});
  }
  const auto choice = cheapest_choice(problem, {1, 1, 0.01});
  EXPECT_LE(price_of(costs_of(problem, choice), {1, 1, 0.01}),
            price_of(costs_of(problem, expand(problem, {1, 1, 0.01})), {1, 1, 0.01}) + 1e-9);
}

TEST(Front, holds_no_point_that_another_one_dominates_and_the_best_of_each_price) {
  std::mt19937 random(6);
  for (int graph = 0; graph < 20; ++graph) {
    const auto problem = random_problem(random);
    Costs whole;
    for (const auto& forms : problem.layers) whole += forms.front();
    const auto points = pareto_front(problem, whole);
    ASSERT_FALSE(points.empty());
    for (const auto& a : points) {
      for (const auto& b : points) EXPECT_FALSE(dominates(a.costs, b.costs));
    }
    const Prices prices{1, 0.5 / whole.seconds, 0.5 / whole.bytes};
    double least = std::numeric_limits<double>::infinity();
    for (const auto& point : points) least = std::min(least, price_of(point.costs, prices));
    EXPECT_LE(least, best_of_all(problem, prices) * 1.02);
  }
}

TEST(Front, spreads_from_what_is_there) {
  const Costs whole{1, 1, 1};
  const std::vector<Costs> points{{1e-4, 1, 1}, {1e-4, 0.9, 1}, {1e-2, 0.2, 0.2}, {1e-3, 0.5, 0.5}};
  const std::vector<Costs> taken{{1e-4, 1, 1}};
  EXPECT_EQ(most_spread_points(points, taken, whole, 2), (std::vector<std::size_t>{2, 3}));
  EXPECT_EQ(most_spread_points(points, taken, whole, 9).size(), 3);  // the first lies where one is taken
}

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
