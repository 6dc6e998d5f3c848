#include "remedies/fallback.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace detent::remedies {
namespace {

constexpr double kAll = std::numeric_limits<double>::infinity();

// A model whose product n has the mark "m<n>" of its own.
quantization::Placement without(std::size_t count, const std::vector<std::size_t>& floats) {
  quantization::Placement placement;
  for (std::size_t n = 0; n < count; ++n) {
    if (std::find(floats.begin(), floats.end(), n) == floats.end())
      placement.marks.push_back({.value = "m" + std::to_string(n), .granularity = {}, .shares = {}});
  }
  return placement;
}

struct Case {
  std::vector<Candidate> candidates;
  MarkErrors errors;
  double whole = 0;

  explicit Case(std::vector<std::pair<double, double>> errors_and_macs) {
    for (std::size_t n = 0; n < errors_and_macs.size(); ++n) {
      errors["m" + std::to_string(n)] = {errors_and_macs[n].first};
      candidates.push_back({n, errors_and_macs[n].second});
      whole += errors_and_macs[n].first;
    }
  }

  std::vector<FallbackChoice> choose(const ChoiceLimits& limits) const {
    return choose_fallbacks(
        candidates, errors, [this](const auto& floats) { return without(candidates.size(), floats); }, limits);
  }
};

TEST(FallbackChoice, PlacesOnlyWhatMayBeTheBest) {
  std::vector<std::pair<double, double>> errors_and_macs;
  for (int n = 0; n < 100; ++n) errors_and_macs.emplace_back(std::pow(0.8, n), 0.01);
  const Case c(errors_and_macs);
  std::size_t placed = 0;
  const auto choices = choose_fallbacks(c.candidates, c.errors,
                                        [&](const auto& floats) {
                                          ++placed;
                                          return without(c.candidates.size(), floats);
                                        },
                                        {.macs = 0.205});
  EXPECT_EQ(choices.size(), 20u);
  EXPECT_LT(placed, 1000u) << "each of 100 in each of 20 steps, and again for second thoughts, would be 8,000";
}

TEST(FallbackChoice, TakesMostErrorForFewestMultiplicationsFirst) {
  const Case c({{0.1, 0.5}, {0.4, 0.1}, {0.3, 0.3}, {0.2, 0.1}});
  const auto choices = c.choose({.macs = kAll});
  ASSERT_EQ(choices.size(), 4u);
  EXPECT_EQ(choices[0].node, 1u);
  EXPECT_EQ(choices[1].node, 3u);
  EXPECT_EQ(choices[2].node, 2u);
  EXPECT_DOUBLE_EQ(choices[0].removed, 0.4);
  EXPECT_EQ(choices[0].macs, 0.1);
}

TEST(FallbackChoice, SmallOnesLeaveRoomForTheWorst) {
  // By gain for each multiplication the first two come first, and the third no longer fits.
  const Case c({{0.2, 0.02}, {0.17, 0.02}, {0.6, 0.08}, {0.1, 0.5}});
  const auto choices = c.choose({.macs = 0.1});
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0].node, 2u);
  EXPECT_EQ(choices[1].node, 0u);
}

TEST(FallbackChoice, KeepsToItsLimits) {
  const Case c({{0.1, 0.05}, {0.4, 0.04}, {0.3, 0.3}, {0.2, 0.04}});
  EXPECT_EQ(c.choose({.macs = 0.1}).size(), 2u) << "a third would pass the tenth of the multiplications";
  EXPECT_EQ(c.choose({.macs = kAll, .worth_removing = 0.25}).size(), 2u);
  EXPECT_EQ(c.choose({.macs = kAll, .ratio = 5}).size(), 2u) << "0.4 for 0.04 and 0.2 for 0.04";
  EXPECT_EQ(c.choose({.macs = kAll, .error = 0.45}).size(), 2u) << "0.4 are left then";
  EXPECT_TRUE(c.choose({.macs = 0}).empty());
}

TEST(FallbackChoice, AValueThatTwoProductsReadGoesWithTheSecond) {
  const std::vector<Candidate> candidates{{0, 0.1}, {1, 0.1}};
  const MarkErrors errors{{"shared", PointErrors{0.8}}, {"w0", PointErrors{0.1}}, {"w1", PointErrors{0.1}}};
  const auto place = [](const std::vector<std::size_t>& floats) {
    quantization::Placement placement;
    for (std::size_t n = 0; n < 2; ++n) {
      if (std::find(floats.begin(), floats.end(), n) == floats.end())
        placement.marks.push_back({.value = "w" + std::to_string(n), .granularity = {}, .shares = {}});
    }
    if (floats.size() < 2) placement.marks.push_back({.value = "shared", .granularity = {}, .shares = {}});
    return placement;
  };
  const auto choices = choose_fallbacks(candidates, errors, place, {.macs = kAll});
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_NEAR(choices[0].removed, 0.1, 1e-12);
  EXPECT_NEAR(choices[1].removed, 0.9, 1e-12);
}

// The cheapest set whose error is at most `error`, of all sets.
double cheapest(const Case& c, double error) {
  double best = kAll;
  for (std::uint32_t set = 0; set < 1U << c.candidates.size(); ++set) {
    double left = c.whole, macs = 0;
    for (std::size_t n = 0; n < c.candidates.size(); ++n) {
      if ((set >> n & 1U) == 0) continue;
      left -= c.errors.at("m" + std::to_string(n)).front();
      macs += c.candidates[n].macs;
    }
    if (left <= error) best = std::min(best, macs);
  }
  return best;
}

TEST(FallbackChoice, IsWithinOneCandidateOfTheBestSet) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0.01, 1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::pair<double, double>> pairs;
    for (int n = 0; n < 10; ++n) pairs.emplace_back(uniform(random), uniform(random) / 10);
    const Case c(pairs);
    const double error = 0.3 * c.whole;
    double macs = 0, dearest = 0;
    for (const auto& choice : c.choose({.macs = kAll, .error = error})) {
      macs += choice.macs;
      dearest = std::max(dearest, choice.macs);
    }
    EXPECT_LE(macs - dearest, cheapest(c, error)) << "the classic bound of the greedy knapsack";
  }
}

}  // namespace
}  // namespace detent::remedies
