#include "speed/choice.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace detent::speed {
namespace {

struct Network {
  std::size_t vertices = 0;
  std::map<std::pair<std::size_t, std::size_t>, std::int64_t> costs;

  std::int64_t cost_of(const std::vector<bool>& side) const {
    std::int64_t sum = 0;
    for (const auto& [arc, cost] : costs) sum += side[arc.first] && !side[arc.second] ? cost : 0;
    return sum;
  }
  std::vector<bool> cut() const {
    MinCut network(vertices);
    for (const auto& [arc, cost] : costs) network.add(arc.first, arc.second, cost);
    return network.source_side(0, 1);
  }
};

std::int64_t least_of_all(const Network& network) {
  std::int64_t least = MinCut::kNever;
  for (unsigned bits = 0; bits < 1U << (network.vertices - 2); ++bits) {
    std::vector<bool> side{true, false};
    for (std::size_t v = 2; v < network.vertices; ++v) side.push_back((bits >> (v - 2) & 1U) != 0);
    least = std::min(least, network.cost_of(side));
  }
  return least;
}

TEST(MinCut, costs_no_more_than_any_other_cut_of_random_networks) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Network network{9, {}};
    for (int arc = 0; arc < 24; ++arc) {
      const std::size_t from = random() % network.vertices, to = random() % network.vertices;
      if (from != to) network.costs[{from, to}] = static_cast<std::int64_t>(random() % 20);
    }
    const auto side = network.cut();
    ASSERT_TRUE(side[0]);
    ASSERT_FALSE(side[1]);
    EXPECT_EQ(network.cost_of(side), least_of_all(network)) << "round " << round;
  }
}

TEST(MinCut, keeps_together_what_may_never_part) {
  const Network network{4, {{{0, 2}, 5}, {{3, 1}, 4}, {{2, 3}, MinCut::kNever}, {{3, 2}, MinCut::kNever}}};
  EXPECT_EQ(network.cut(), (std::vector<bool>{true, false, true, true}));
}

TEST(MinCut, gives_ties_to_the_source) {
  EXPECT_EQ((Network{3, {{{0, 2}, 3}, {{2, 1}, 3}}}.cut()), (std::vector<bool>{true, false, true}));
  EXPECT_EQ((Network{3, {}}.cut()), (std::vector<bool>{true, false, true}));
}

TEST(MinCut, takes_chains_of_a_hundred_thousand_vertices) {
  constexpr std::size_t kLength = 100'000;
  Network network{kLength + 2, {}};
  for (std::size_t v = 2; v < network.vertices; ++v) {
    network.costs[{0, v}] = 4;
    network.costs[{v, 1}] = v % 2 == 0 ? 2 : 6;
    if (v + 1 < network.vertices) network.costs[{v, v + 1}] = 1;
  }
  const auto side = network.cut();
  EXPECT_TRUE(side[2]);   // in integers: 2, and 1 for the conversion, instead of 4
  EXPECT_FALSE(side[3]);  // 4, and 1 for the conversion, instead of 6
}

}  // namespace
}  // namespace detent::speed
