#include "quantization/blocks/block_stream.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace detent::quantization {
namespace {

using Groups = std::vector<std::vector<BitOption>>;

std::int64_t bytes_of(const Groups& groups, const std::vector<std::size_t>& chosen) {
  std::int64_t sum = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) sum += groups[g][chosen[g]].bytes;
  return sum;
}

double error_of(const Groups& groups, const std::vector<std::size_t>& chosen) {
  double sum = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) sum += groups[g][chosen[g]].error;
  return sum;
}

// By trying all of them.
double least_error(const Groups& groups, std::int64_t budget) {
  std::vector<std::size_t> at(groups.size(), 0);
  double best = std::numeric_limits<double>::infinity();
  while (true) {
    if (bytes_of(groups, at) <= budget) best = std::min(best, error_of(groups, at));
    std::size_t g = 0;
    while (g < groups.size() && ++at[g] == groups[g].size()) at[g++] = 0;
    if (g == groups.size()) return best;
  }
}

// Errors fall by about a factor of 16 for each two bits, as those of rounding do.
Groups synthetic(unsigned seed, std::size_t count) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> share(0.3, 1.0);
  std::uniform_int_distribution<std::int64_t> size(1, 40);
  Groups groups(count);
  for (auto& options : groups) {
    const auto weights = size(random);
    double error = share(random) * share(random);
    for (const int bits : {2, 4, 8}) {
      options.push_back({bits, weights * (bits - 32), error});
      error *= (bits == 2 ? 0.06 : 0.004) * share(random);
    }
    options.push_back({0, 0, 0});
  }
  return groups;
}

TEST(BitChoice, NearTheBestOfAllAndWithinTheBudget) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto groups = synthetic(seed, 7);
    for (const double share : {0.1, 0.3, 0.6, 0.9}) {
      const auto smallest = bytes_of(groups, std::vector<std::size_t>(7, 0));
      const auto budget = static_cast<std::int64_t>(static_cast<double>(smallest) * (1 - share));
      const auto chosen = choose_bits(groups, budget);
      ASSERT_TRUE(chosen.has_value());
      EXPECT_LE(bytes_of(groups, *chosen), budget);
      const double best = least_error(groups, budget);
      EXPECT_LE(error_of(groups, *chosen), 1.001 * best + 1e-12) << seed << ' ' << share;
    }
  }
}

// Bytes of real weights, which the table takes in units.
TEST(BitChoice, NearTheBestWithManyBytes) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    auto groups = synthetic(seed, 7);
    for (auto& options : groups) {
      for (auto& option : options) option.bytes *= 123457;
    }
    const auto budget = bytes_of(groups, std::vector<std::size_t>(7, 0)) * 7 / 10;
    const auto chosen = choose_bits(groups, budget);
    ASSERT_TRUE(chosen.has_value());
    EXPECT_LE(bytes_of(groups, *chosen), budget);
    EXPECT_LE(error_of(groups, *chosen), 1.05 * least_error(groups, budget)) << seed;
  }
}

TEST(BitChoice, TooSmallABudget) {
  const Groups groups{{{2, -30, 1.0}, {4, -28, 0.1}}};
  EXPECT_FALSE(choose_bits(groups, -31).has_value());
  EXPECT_EQ(choose_bits(groups, -30), std::vector<std::size_t>{0});
  EXPECT_EQ(choose_bits(groups, -28), std::vector<std::size_t>{1});
}

TEST(BitChoice, OptionsThatAreNoUseAreNotTaken) {
  // 4 bits are no better than 2, and 8 no better than float, which costs no more.
  const Groups groups{{{2, -30, 0.5}, {4, -28, 0.5}, {8, 0, 0.1}, {0, 0, 0}}, {{0, 0, 0}}};
  EXPECT_EQ(choose_bits(groups, -20), (std::vector<std::size_t>{0, 0}));
  EXPECT_EQ(choose_bits(groups, 0), (std::vector<std::size_t>{3, 0}));
}

TEST(BitChoice, EqualGroupsGoByTheirOrder) {
  const Groups groups(3, {{2, -30, 1.0}, {4, -28, 0.1}});
  EXPECT_EQ(choose_bits(groups, -87), (std::vector<std::size_t>{1, 0, 0}));
}

}  // namespace
}  // namespace detent::quantization
