#include "solve/layers/problem.h"

#include <gtest/gtest.h>

namespace detent::solve {
namespace {

// Two rows of five weights, the fourth of which is alone.
QuantizedWeights paired() {
  QuantizedWeights weights;
  weights.rows = 2;
  weights.fan_in = 5;
  weights.values = {63.4F, 100, 66.2F, 100, 100, -70, -3, -58.6F, 127, -127};
  weights.scale = {1, 1};
  weights.zero = {0, 0};
  weights.pairs = {{0, 2}, {4, 1}};
  return weights;
}

TEST(KeepPairs, MovesThoseThatWereRoundedUpMost) {
  std::vector<std::int32_t> integers{64, 30, 66, 127, 100, -70, -4, -59, 127, -127};
  limit_pair_sums(paired(), integers);
  EXPECT_EQ(integers, (std::vector<std::int32_t>{63, 30, 65, 127, 98, -70, -2, -58, 127, -126}));
}

TEST(KeepPairs, LeavesOthersAsTheyAre) {
  const std::vector<std::int32_t> fine{64, -128, 64, 127, 127, -128, -1, 0, 127, -127};
  auto integers = fine;
  limit_pair_sums(paired(), integers);
  EXPECT_EQ(integers, fine);
  auto without_pairs = paired();
  without_pairs.pairs.clear();
  integers.assign(10, 127);
  limit_pair_sums(without_pairs, integers);
  EXPECT_EQ(integers, std::vector<std::int32_t>(10, 127));
}

}  // namespace
}  // namespace detent::solve
