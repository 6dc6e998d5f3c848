#include "quantization/floats/half_values.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "onnx/packed_numbers.h"

namespace detent::quantization {
namespace {

TEST(HalfValues, LoopsGiveWhatSingleValuesGive) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values{0, -0.0F, 1e-8F, 7e4F, std::numeric_limits<float>::infinity(), std::nanf(""), 6e-8F};
  while (values.size() < 4099) values.push_back(normal(random) * std::exp2(20 * normal(random)));
  for (const auto type : {FloatType::float16, FloatType::bfloat16}) {
    const bool half = type == FloatType::float16;
    std::vector<std::uint16_t> low(values.size());
    to_16_bits(values, type, low.data());
    Rounding16Sums sums(type);
    sums.add(values);
    Rounding16 expected{std::numeric_limits<float>::infinity(), 0, 0, 0};
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto single = half ? onnx::to_float16(values[i]) : onnx::to_bfloat16(values[i]);
      EXPECT_EQ(low[i], single) << values[i];
      if (!std::isfinite(values[i])) continue;
      const float magnitude = std::abs(values[i]);
      if (magnitude > 0) expected.smallest = std::min(expected.smallest, magnitude);
      expected.largest = std::max(expected.largest, magnitude);
      const double value = values[i], rounded = half ? onnx::from_float16(single) : onnx::from_bfloat16(single);
      expected.squares += value * value;
      expected.errors += (rounded - value) * (rounded - value);
    }
    const auto found = sums.sums();
    EXPECT_EQ(found.smallest, expected.smallest);
    EXPECT_EQ(found.largest, expected.largest);
    EXPECT_NEAR(found.squares / expected.squares, 1, 1e-12);
    if (half) {
      EXPECT_TRUE(std::isinf(found.errors) && std::isinf(expected.errors));  // 7e4 does not fit
    } else {
      EXPECT_NEAR(found.errors / expected.errors, 1, 1e-12);
    }
  }
}

TEST(HalfValues, ZerosAreNoValues) {
  Rounding16Sums sums(FloatType::float16);
  sums.add(std::vector<float>(5, 0));
  EXPECT_EQ(sums.sums().smallest, 0);
  EXPECT_EQ(sums.sums().largest, 0);
}

TEST(HalfValues, RoundsInPlaceAndCountsWhatBecomesInfinite) {
  std::vector<float> values(3000, 1.0F + 1.0F / 4096);
  values[7] = 7e4F;
  values[2500] = -7e4F;
  values[2999] = std::numeric_limits<float>::infinity();
  auto half = values, brain = values;
  EXPECT_EQ(round_to_16_bits(half, FloatType::float16), 2U);
  EXPECT_EQ(round_to_16_bits(brain, FloatType::bfloat16), 0U);
  for (std::size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(half[i], onnx::from_float16(onnx::to_float16(values[i])));
    EXPECT_EQ(brain[i], onnx::from_bfloat16(onnx::to_bfloat16(values[i])));
  }
}

}  // namespace
}  // namespace detent::quantization
