#include "calibration/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace detent::calibration {
namespace {

using Floats = std::vector<float>;

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
constexpr std::int64_t kWord = std::int64_t{1} << 32;
__extension__ using Wide = __int128;

ExactSum sum_of(const Floats& values) {
  ExactSum sum;
  for (const float v : values) sum.add(v);
  return sum;
}

Floats any_finite(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Floats values;
  while (values.size() < size) {
    const auto v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(v)) values.push_back(v);
  }
  return values;
}

void expect_canonical(const ExactSum::Limbs& limbs) {
  for (std::size_t i = 0; i + 1 < limbs.size(); ++i) {
    EXPECT_GE(limbs[i], 0) << i;
    EXPECT_LT(limbs[i], kWord) << i;
  }
}

TEST(ExactSum, OfNothingIsZero) {
  EXPECT_EQ(ExactSum().value(), 0);
  EXPECT_EQ(ExactSum().limbs(), ExactSum::Limbs{});
  EXPECT_EQ(sum_of({0.0F, -0.0F}).limbs(), ExactSum::Limbs{});
}

TEST(ExactSum, LimbsWeighAsStated) {
  EXPECT_EQ(sum_of({kDenormal}).limbs(), (ExactSum::Limbs{1}));
  EXPECT_EQ(sum_of({std::numeric_limits<float>::min()}).limbs(), (ExactSum::Limbs{1 << 23}));
  EXPECT_EQ(sum_of({1.0F}).limbs(), (ExactSum::Limbs{0, 0, 0, 0, 1 << 21}));  // 149 = 4 * 32 + 21
  EXPECT_EQ(sum_of({-1.0F}).limbs(),
            (ExactSum::Limbs{0, 0, 0, 0, kWord - (1 << 21), kWord - 1, kWord - 1, kWord - 1, -1}));
  // (2^24 - 1) * 2^104 = (2^24 - 1) * 2^29 in limb 7
  EXPECT_EQ(sum_of({kLargest}).limbs(), (ExactSum::Limbs{0, 0, 0, 0, 0, 0, 0, 0xe0000000, 0x1fffff}));
}

TEST(ExactSum, EveryFloatAloneIsItself) {
  Floats values = any_finite(20000, 1);
  values.insert(values.end(), {kLargest, -kLargest, kDenormal, -kDenormal, 0x1p-126F, -0x1p-126F, 0x1.fffffcp-127F});
  for (int exponent = -149; exponent <= 127; ++exponent) values.push_back(std::ldexp(1.0F, exponent));
  for (const float v : values) {
    const ExactSum sum = sum_of({v});
    ASSERT_EQ(sum.value(), static_cast<double>(v)) << v;
    expect_canonical(sum.limbs());
  }
}

TEST(ExactSum, AgreesWithIntegerArithmetic) {
  // Exponents of 2^-40 to 2^40: as integers of 2^-64 the sums fit 128 bits.
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    Floats values(random() % 300);
    for (auto& v : values) {
      v = std::ldexp(static_cast<float>(static_cast<int>(random() % 0x1ffffff) - 0xffffff),
                     static_cast<int>(random() % 57) - 40);
    }
    Wide expected = 0;
    for (const float v : values) {
      int exponent = 0;
      const auto mantissa = static_cast<std::int64_t>(std::ldexp(std::frexp(v, &exponent), 24));
      expected += static_cast<Wide>(mantissa) * (Wide{1} << (exponent - 24 + 64));
    }
    const auto limbs = sum_of(values).limbs();
    expect_canonical(limbs);
    // 2^-64 is bit 85 of the limbs.
    Wide found = 0;
    for (std::size_t i = limbs.size(); i-- > 3;) found = found * kWord + limbs[i];
    found = found * (Wide{1} << 11) + (limbs[2] >> 21);
    EXPECT_TRUE(found == expected) << round;
    EXPECT_EQ(limbs[0] + limbs[1] + (limbs[2] & 0x1fffff), 0);
    const auto nearest = static_cast<double>(expected) * 0x1p-64;
    EXPECT_NEAR(sum_of(values).value(), nearest, 4 * std::numeric_limits<double>::epsilon() * std::abs(nearest));
  }
}

TEST(ExactSum, NothingIsLostToCancellation) {
  EXPECT_EQ(sum_of({kLargest, kDenormal, -kLargest}).value(), static_cast<double>(kDenormal));
  EXPECT_EQ(sum_of({-kLargest, -kDenormal, kLargest}).value(), -static_cast<double>(kDenormal));
  EXPECT_EQ(sum_of({1.0F, 0x1p-149F, -1.0F, 0x1p-149F}).value(), 0x1p-148);
  Floats values = any_finite(3000, 3);
  const std::size_t half = values.size();
  for (std::size_t i = 0; i < half; ++i) values.push_back(-values[i]);
  for (const float rest : {0.0F, 3 * kDenormal, -kDenormal, 1.5F, -1e30F}) {
    values.push_back(rest);
    std::mt19937 random(4);
    for (int round = 0; round < 5; ++round) {
      std::shuffle(values.begin(), values.end(), random);
      EXPECT_EQ(sum_of(values).value(), static_cast<double>(rest));
    }
    values.erase(std::find(values.begin(), values.end(), rest));
  }
}

TEST(ExactSum, ExactFractionsFromPython) {
  // float(sum(map(fractions.Fraction, values))) of the values as float32; a sum of doubles would give 0 for the first.
  EXPECT_EQ(sum_of({1e30F, 1.0F, -1e30F}).value(), 1.0);
  EXPECT_EQ(sum_of({0.1F, 0.2F, 0.3F, 3e-39F}).value(), 0.6000000163912773);
  EXPECT_EQ(sum_of({3.4e38F, 3.4e38F, -1e20F, 7e-45F}).value(), 6.7999999042887285e+38);
}

TEST(ExactSum, TheOrderDoesNotMatter) {
  Floats values = any_finite(2000, 5);
  const auto expected = sum_of(values).limbs();
  std::mt19937 random(6);
  for (int round = 0; round < 30; ++round) {
    std::shuffle(values.begin(), values.end(), random);
    ASSERT_EQ(sum_of(values).limbs(), expected) << round;
  }
}

TEST(ExactSum, MergeEqualsOneSumInAnyGrouping) {
  const Floats values = any_finite(1000, 7);
  const auto expected = sum_of(values).limbs();
  std::vector<ExactSum> parts;
  for (std::size_t i = 0; i < values.size(); i += 90)
    parts.push_back(sum_of({values.begin() + i, values.begin() + std::min(i + 90, values.size())}));
  std::mt19937 random(8);
  for (int round = 0; round < 30; ++round) {
    std::shuffle(parts.begin(), parts.end(), random);
    ExactSum left, pairs;
    for (const auto& part : parts) left.merge(part);
    for (std::size_t i = 0; i < parts.size(); i += 3) {
      ExactSum group;
      for (std::size_t j = i; j < std::min(i + 3, parts.size()); ++j) group.merge(parts[j]);
      pairs.merge(group);
    }
    ASSERT_EQ(left.limbs(), expected);
    ASSERT_EQ(pairs.limbs(), expected);
  }
  ExactSum doubled = sum_of(values);
  doubled.merge(doubled);
  EXPECT_EQ(doubled.value(), 2 * sum_of(values).value());
}

TEST(ExactSum, LimbsGiveTheSumBack) {
  for (const auto& values : {any_finite(50, 9), Floats{-1.0F}, Floats{-kLargest, -kLargest, 1.0F}, Floats{}}) {
    const ExactSum sum = sum_of(values);
    ExactSum again(sum.limbs());
    EXPECT_EQ(again.limbs(), sum.limbs());
    EXPECT_EQ(again.value(), sum.value());
    again.add(2.5F);
    Floats more = values;
    more.push_back(2.5F);
    EXPECT_EQ(again.limbs(), sum_of(more).limbs());
  }
}

TEST(ExactSum, HoldsMillionsOfTheLargest) {
  constexpr int kMany = 1 << 22;
  ExactSum sum;
  for (int i = 0; i < kMany; ++i) sum.add(-kLargest);
  EXPECT_EQ(sum.value(), -std::ldexp(static_cast<double>(kLargest), 22));
  for (int doubling = 0; doubling < 9; ++doubling) sum.merge(sum);
  EXPECT_EQ(sum.value(), -std::ldexp(static_cast<double>(kLargest), 31)) << "what the header promises";
}

}  // namespace
}  // namespace detent::calibration
