#include "run/comparison/pairing.h"

#include <gtest/gtest.h>

#include <limits>

namespace detent::run {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

PairSums sums_of(const std::vector<float>& x, const std::vector<float>& y) {
  PairSums sums;
  sums.add(std::span(x), std::span(y));
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
  EXPECT_EQ(sums_of({3, 4}, {kNaN, kNaN}).signal, 25);
}

data::Array array_of(const std::vector<float>& values, std::vector<std::int64_t> shape) {
  return {onnx::DataType::float32, std::move(shape), std::as_bytes(std::span(values)), nullptr};
}

TEST(PairSums, PairWhatStandsInBothWhereShapesDiffer) {
  const std::vector<float> x{1, 2, 3, 4, 5, 6}, y{1, 2, 9, 4, 5, 9, 9, 9, 9};
  PairSums sums;
  sums.add(array_of(x, {2, 3}), array_of(y, {3, 3}));
  EXPECT_EQ(sums.paired, 6u);
  EXPECT_EQ(sums.unpaired, 3u);
  EXPECT_EQ(sums.noise, 36 + 9);
  PairSums narrow;
  narrow.add(array_of({y.begin(), y.begin() + 4}, {2, 2}), array_of(x, {2, 3}));
  EXPECT_EQ(narrow.paired, 4u);
  EXPECT_EQ(narrow.signal, 1 + 4 + 81 + 16);
  EXPECT_EQ(narrow.noise, 0 + 0 + 25 + 1);
}

}  // namespace
}  // namespace detent::run
