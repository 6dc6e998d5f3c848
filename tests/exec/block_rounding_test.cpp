// Blocks of numbers with one exponent, rounded as AMD Quark's operators round them.
#include "exec/operators.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/error.h"

namespace detent::exec {
namespace {

#include "exec/block_rounding_table.inc"

constexpr std::size_t kCount = 32;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Every number of `kNumbers`, in blocks.
template <class Format>
void expect_rounded(const Format& format, std::size_t size, const float (&expected)[kCount]) {
  std::vector<float> out(kCount);
  const std::array<std::int64_t, 1> shape{kCount};
  for_each_block(shape, 0, size, kNumbers, out, [&](std::span<float> block) { round_block(format, block); });
  for (std::size_t i = 0; i < kCount; ++i) EXPECT_EQ(out[i], expected[i]) << i << ": " << kNumbers[i];
}

TEST(BlockRounding, EveryFormatGivesQuarksNumbers) {
  expect_rounded(SharedExponent{16}, 8, k_bfp16);
  expect_rounded(Microexponents{11}, 16, k_mx4);
  expect_rounded(Microexponents{13}, 16, k_mx6);
  expect_rounded(Microexponents{16}, 16, k_mx9);
  expect_rounded(microscaling_of("fp8_e5m2"), 32, k_fp8_e5m2);
  expect_rounded(microscaling_of("fp8_e4m3"), 32, k_fp8_e4m3);
  expect_rounded(microscaling_of("fp6_e3m2"), 32, k_fp6_e3m2);
  expect_rounded(microscaling_of("fp6_e2m3"), 32, k_fp6_e2m3);
  expect_rounded(microscaling_of("fp4_e2m1"), 32, k_fp4_e2m1);
  expect_rounded(microscaling_of("int8"), 32, k_int8);
  EXPECT_THROW(microscaling_of("fp5"), Error);
}

TEST(BlockRounding, WhatIsNotFinite) {
  std::array<float, 4> block{1, kInfinity, -kInfinity, std::nanf("")};
  round_block(SharedExponent{}, block);
  EXPECT_EQ(block[0], 1);
  EXPECT_EQ(block[1], kInfinity);
  EXPECT_TRUE(std::isnan(block[3]));
  round_block(Microexponents{}, block);
  for (const float value : block) EXPECT_TRUE(std::isnan(value));
}

TEST(BlockRounding, NumbersHalfWay) {
  // Steps of 1/64: 0.5 of them lies in the middle.
  const auto rounded = [](HalfWay half_way, float value) {
    std::array<float, 2> block{1, value / 64};
    round_block(SharedExponent{16, half_way}, block);
    return block[1] * 64;
  };
  EXPECT_EQ(rounded(HalfWay::to_even, 2.5F), 2);
  EXPECT_EQ(rounded(HalfWay::away, 2.5F), 3);
  EXPECT_EQ(rounded(HalfWay::away, -2.5F), -3);
  EXPECT_EQ(rounded(HalfWay::up, -2.5F), -2);
}

TEST(BlockRounding, BlocksAlongAnAxisWithARest) {
  // 3 rows of 5, cut along the columns in blocks of 2: each becomes its largest number.
  std::vector<float> values(15), out(15);
  for (std::size_t i = 0; i < 15; ++i) values[i] = static_cast<float>(i);
  const std::array<std::int64_t, 2> shape{3, 5};
  for_each_block(shape, 0, 2, values, out, [](std::span<float> block) {
    ASSERT_EQ(block.size(), 2U);
    std::fill(block.begin(), block.end(), std::max(block[0], block[1]));
  });
  EXPECT_EQ(out, (std::vector<float>{5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}));
}

}  // namespace
}  // namespace detent::exec
