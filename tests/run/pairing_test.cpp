#include "run/pairing.h"

#include <gtest/gtest.h>

#include <limits>

namespace detent::run {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

PairSums sums_of(const std::vector<float>& x, const std::vector<float>& y) {
  PairSums sums;
  sums.add(std::span(x), std::span(y), "v");
  return sums;
}

TEST(PairSums, LeaveOutWhatIsTheSameInBothAndNotFinite) {
  const auto finite = sums_of({3, 4}, {3, 4.5F});
  const auto masked = sums_of({3, -kInfinity, 4, kNaN}, {3, -kInfinity, 4.5F, kNaN});
  EXPECT_EQ(masked.sqnr_db(), finite.sqnr_db());
  EXPECT_EQ(masked.cosine(), finite.cosine());
  EXPECT_EQ(masked.max_abs, 0.5);
}

TEST(PairSums, AreInfinitelyOffWhereOnlyOneIsFinite) {
  for (const float odd : {kInfinity, -kInfinity, kNaN}) {
    EXPECT_EQ(sums_of({1, 2}, {1, odd}).sqnr_db(), -kInfinity);
    EXPECT_EQ(sums_of({1, odd}, {1, 2}).max_abs, kInfinity);
  }
  EXPECT_EQ(sums_of({1, kInfinity}, {1, -kInfinity}).sqnr_db(), -kInfinity);
}

}  // namespace
}  // namespace detent::run
