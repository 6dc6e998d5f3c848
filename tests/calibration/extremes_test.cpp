#include "calibration/statistics.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace detent::calibration {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
constexpr float kTiny = std::numeric_limits<float>::min();
constexpr float kMax = std::numeric_limits<float>::max();

std::int32_t key_of(float value) { return order_key(std::bit_cast<std::int32_t>(value)); }

TEST(OrderKey, AscendsOverSpecialValuesAndIsItsOwnInverse) {
  const std::vector<float> ascending{-kNan, -kInf,     -kMax, -1.5F, -1.0F, -kTiny, -kDenormal, -0.0F,
                                     0.0F,  kDenormal, kTiny, 1.0F,  1.5F,  kMax,   kInf,       kNan};
  for (std::size_t i = 0; i < ascending.size(); ++i) {
    const auto bits = std::bit_cast<std::int32_t>(ascending[i]);
    EXPECT_EQ(order_key(order_key(bits)), bits) << i;
    if (i > 0) {
      EXPECT_LT(key_of(ascending[i - 1]), key_of(ascending[i])) << i;
    }
  }
}

TEST(OrderKey, AgreesWithFloatComparisonForAnyBits) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto a = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    const auto b = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isnan(a) || std::isnan(b) || (a == 0 && b == 0)) continue;
    ASSERT_EQ(a < b, key_of(a) < key_of(b)) << a << " " << b;
  }
}

TEST(Scan, OfNothingIsEmptyFiniteAndMergesAway) {
  const KeyRange none = scan({});
  EXPECT_TRUE(none.empty());
  EXPECT_TRUE(none.finite());
  const float one = 3.0F;
  KeyRange range = scan({&one, 1});
  range.merge(none);
  EXPECT_EQ(range.lowest(), 3.0F);
  EXPECT_EQ(range.highest(), 3.0F);
}

TEST(Scan, FindsMinAndMaxForEveryLengthAndStart) {
  std::mt19937 random(2);
  std::uniform_int_distribution<int> exponent(-140, 100);
  std::vector<float> storage(96);
  for (std::size_t start = 0; start < 17; ++start) {
    for (std::size_t length = 0; length <= 70; ++length) {
      for (auto& v : storage) {
        v = std::ldexp(static_cast<float>(static_cast<int>(random() % 2001) - 1000), exponent(random));
      }
      const std::span<const float> values(storage.data() + start, length);
      const KeyRange range = scan(values);
      ASSERT_EQ(range.empty(), length == 0);
      if (length == 0) continue;
      float lowest = kInf, highest = -kInf;
      for (const float v : values) {
        if (v < lowest) lowest = v;
        if (v > highest) highest = v;
      }
      ASSERT_EQ(range.lowest(), lowest) << start << " " << length;
      ASSERT_EQ(range.highest(), highest) << start << " " << length;
      ASSERT_TRUE(range.finite());
    }
  }
}

TEST(Scan, TellsTheZerosApart) {
  const std::vector<float> zeros{0.0F, -0.0F, 0.0F};
  EXPECT_TRUE(std::signbit(scan(zeros).lowest()));
  EXPECT_FALSE(std::signbit(scan(zeros).highest()));
}

TEST(Scan, KeepsDenormals) {
  const std::vector<float> values{kDenormal, -kDenormal * 3, 0.0F};
  EXPECT_EQ(scan(values).lowest(), -kDenormal * 3);
  EXPECT_EQ(scan(values).highest(), kDenormal);
}

TEST(Scan, NothingNonfiniteHidesAtAnyPosition) {
  for (const float bad :
       {kNan, -kNan, kInf, -kInf, std::bit_cast<float>(0x7f800001U), std::bit_cast<float>(0xffffffffU)}) {
    for (std::size_t length = 1; length <= 70; ++length) {
      for (std::size_t at = 0; at < length; ++at) {
        std::vector<float> values(length, 1.0F);
        ASSERT_TRUE(scan(values).finite());
        values[at] = bad;
        ASSERT_FALSE(scan(values).finite()) << length << " " << at << " " << std::bit_cast<std::uint32_t>(bad);
      }
    }
  }
  const std::vector<float> largest{kMax, -kMax};
  EXPECT_TRUE(scan(largest).finite());
}

TEST(KeyRange, MergeEqualsScanOfTheWhole) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(1000);
  for (auto& v : values) v = normal(random);
  const KeyRange whole = scan(values);
  for (const std::size_t split : {0UL, 1UL, 333UL, 999UL, 1000UL}) {
    const std::span<const float> all(values);
    KeyRange merged = scan(all.subspan(split));
    merged.merge(scan(all.first(split)));
    EXPECT_EQ(merged.min, whole.min);
    EXPECT_EQ(merged.max, whole.max);
  }
}

}  // namespace
}  // namespace detent::calibration
