#include "quantization/blocks/block_stream.h"

#include <gtest/gtest.h>

#include <cmath>

namespace detent::quantization {
namespace {

double falling(std::uint64_t size) { return std::exp2(-static_cast<double>(size) / 50); }

TEST(SizeSearch, FindsTheSmallestThatIsEnough) {
  for (const double factor : {0.01, 1.0, 100.0}) {
    for (const std::uint64_t first : {1000U, 1400U, 2000U}) {
      const auto measured = [&](std::uint64_t size) { return factor * falling(size); };
      std::vector<SizeTrial> trials;
      const auto found = smallest_size({1000, 2000, first, factor * falling(1500)}, falling, measured, trials);
      ASSERT_TRUE(found);
      EXPECT_GE(*found, 1500U);
      EXPECT_LE(*found, 1520U);
      EXPECT_LE(trials.size(), 6U);
    }
  }
}

TEST(SizeSearch, TheExpectationMayBeWrong) {
  const auto measured = [](std::uint64_t size) { return 3 * std::exp2(-static_cast<double>(size) / 80); };
  std::vector<SizeTrial> trials;
  const auto found = smallest_size({1000, 2000, 1200, measured(1500)}, falling, measured, trials);
  ASSERT_TRUE(found);
  EXPECT_GE(*found, 1500U);
  EXPECT_LE(*found, 1600U);
}

TEST(SizeSearch, TakesTheSmallestWhereItIsEnough) {
  const auto nothing = [](std::uint64_t) { return 0.0; };
  std::vector<SizeTrial> trials;
  const auto found = smallest_size({1000, 2000, 1500, 0.1}, falling, nothing, trials);
  ASSERT_TRUE(found);
  EXPECT_LE(*found, 1050U);
}

TEST(SizeSearch, FindsNoneWhereNoneIsEnough) {
  const auto much = [](std::uint64_t) { return 1.0; };
  std::vector<SizeTrial> trials;
  EXPECT_FALSE(smallest_size({1000, 2000, 1500, 0.1}, falling, much, trials));
  EXPECT_LE(trials.size(), 6U);
}

}  // namespace
}  // namespace detent::quantization
