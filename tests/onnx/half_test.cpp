#include "onnx/packed_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace detent::onnx {
namespace {

TEST(Half, EveryNumberComesBackAsItWas) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const bool nan16 = (bits & 0x7fffU) > 0x7c00U, nan_brain = (bits & 0x7fffU) > 0x7f80U;
    EXPECT_EQ(std::isnan(from_float16(half)), nan16);
    EXPECT_EQ(std::isnan(from_bfloat16(half)), nan_brain);
    if (!nan16) {
      EXPECT_EQ(to_float16(from_float16(half)), half);
    }
    if (!nan_brain) {
      EXPECT_EQ(to_bfloat16(from_bfloat16(half)), half);
    }
  }
  EXPECT_TRUE(std::isnan(from_float16(to_float16(NAN))));
  EXPECT_TRUE(std::isnan(from_bfloat16(to_bfloat16(NAN))));
}

TEST(Half, BetweenTwoNumbersTheNearerAndOfEquallyNearTheEvenOne) {
  for (std::uint16_t half = 0; half < 0x7bff; ++half) {
    const float low = from_float16(half), high = from_float16(static_cast<std::uint16_t>(half + 1));
    const float middle = (low + high) / 2;
    EXPECT_EQ(to_float16(std::nextafter(middle, 0.0F)), half);
    EXPECT_EQ(to_float16(middle), half + half % 2);
    EXPECT_EQ(to_float16(std::nextafter(middle, 1e9F)), half + 1);
    EXPECT_EQ(to_float16(-middle), 0x8000 + half + half % 2);
  }
}

TEST(Half, RangesEnd) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(from_float16(to_float16(65519.996F)), 65504);
  EXPECT_EQ(from_float16(to_float16(65520)), inf);
  EXPECT_EQ(from_float16(to_float16(-1e30F)), -inf);
  EXPECT_EQ(from_float16(to_float16(1e-12F)), 0);
  EXPECT_EQ(from_float16(to_float16(1e-7F)), std::ldexp(2.0F, -24));
  EXPECT_EQ(from_bfloat16(to_bfloat16(7e4F)), 70144);
  EXPECT_EQ(from_bfloat16(to_bfloat16(std::numeric_limits<float>::max())), inf);
  EXPECT_EQ(from_bfloat16(to_bfloat16(inf)), inf);
}

}  // namespace
}  // namespace detent::onnx
