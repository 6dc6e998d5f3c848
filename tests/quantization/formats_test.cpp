#include "quantization/formats.h"

#include <gtest/gtest.h>

#include <limits>

#include "detent/error.h"

namespace detent::quantization {
namespace {

constexpr float kTiny = std::numeric_limits<float>::min();
constexpr auto int8 = QuantType::int8, uint8 = QuantType::uint8, int16 = QuantType::int16, uint16 = QuantType::uint16;
constexpr auto int4 = QuantType::int4, uint4 = QuantType::uint4;

struct Case {
  float min, max;
  QuantType type;
  bool symmetric, reduce_range;
  float scale;
  int zero_point;
};

constexpr Case kOnnxRuntime[] = {
#include "scale_zp_table.inc"
};

TEST(ComputeParams, EqualsOnnxRuntime) {
  for (std::size_t i = 0; i < std::size(kOnnxRuntime); ++i) {
    const Case& c = kOnnxRuntime[i];
    const auto p = compute_params(c.min, c.max, {c.type, c.symmetric, c.reduce_range});
    EXPECT_EQ(p.scale, c.scale) << "row " << i;
    EXPECT_EQ(p.zero_point, c.zero_point) << "row " << i;
  }
}

TEST(ComputeParams, RoundsHalfToEvenForTheZeroPoint) {
  // Scale 1: the zero point is -min, which lies halfway between integers.
  EXPECT_EQ(compute_params(-0.5F, 254.5F, {uint8, false, false}).zero_point, 0);
  EXPECT_EQ(compute_params(-1.5F, 253.5F, {uint8, false, false}).zero_point, 2);
  EXPECT_EQ(compute_params(-2.5F, 252.5F, {uint8, false, false}).zero_point, 2);
}

TEST(ComputeParams, ScalesBelowTheSmallestNormalBecomeOne) {
  for (const auto type : {int8, uint8, int16, uint16, int4, uint4}) {
    for (const bool symmetric : {false, true}) {
      for (const float max : {0.0F, -0.0F, std::numeric_limits<float>::denorm_min(), kTiny}) {
        const auto p = compute_params(-max, max, {type, symmetric, false});
        EXPECT_EQ(p.scale, 1.0F);
        EXPECT_EQ(p.zero_point, 0);
      }
    }
  }
  // Exactly the smallest normal number is kept, one step less is not.
  EXPECT_EQ(compute_params(0, 255 * kTiny, {uint8, false, false}).scale, kTiny);
  EXPECT_EQ(compute_params(0, 254.9F * kTiny, {uint8, false, false}).scale, 1.0F);
}

TEST(ComputeParams, ChannelsOfZerosCanHaveTheZeroPointOfAllOthers) {
  for (const auto type : {int8, uint8, int16, uint16, int4, uint4}) {
    for (const bool reduce : {false, true}) {
      const auto others = compute_params(-0.7F, 1.0F, {type, true, reduce, false, true});
      for (const float max : {0.0F, std::numeric_limits<float>::denorm_min()}) {
        const auto zeros = compute_params(0.0F, max, {type, true, reduce, false, true});
        EXPECT_EQ(zeros.scale, 1.0F);
        EXPECT_EQ(zeros.zero_point, others.zero_point);
        EXPECT_EQ(compute_params(0.0F, max, {type, false, reduce, false, true}).zero_point, 0);
      }
    }
  }
}

TEST(ComputeParams, ZeroIsExactAndTheZeroPointIsStorable) {
  for (const auto type : {int8, uint8, int16, uint16, int4, uint4}) {
    for (const bool symmetric : {false, true}) {
      for (const bool reduce : {false, true}) {
        for (float lo = -7.0F; lo < 9.0F; lo += 0.37F) {
          for (float hi = lo; hi < 9.0F; hi += 0.61F) {
            const auto q = mapped_range(type, symmetric, reduce);
            const auto p = compute_params(lo, hi, {type, symmetric, reduce});
            ASSERT_GE(p.zero_point, q.min);
            ASSERT_LE(p.zero_point, q.max);
          }
        }
      }
    }
  }
}

TEST(Ranges, OfEachType) {
  const auto equal = [](IntRange a, int min, int max) { return a.min == min && a.max == max; };
  EXPECT_TRUE(equal(full_range(int8), -128, 127));
  EXPECT_TRUE(equal(full_range(uint8), 0, 255));
  EXPECT_TRUE(equal(full_range(int16), -32768, 32767));
  EXPECT_TRUE(equal(full_range(uint16), 0, 65535));
  EXPECT_TRUE(equal(full_range(int4), -8, 7));
  EXPECT_TRUE(equal(full_range(uint4), 0, 15));
  for (const bool symmetric : {false, true}) {  // ONNX Runtime knows no symmetric range of int4
    EXPECT_TRUE(equal(mapped_range(int4, symmetric, false), -8, 7));
    EXPECT_TRUE(equal(mapped_range(uint4, symmetric, false), 0, 15));
  }
  EXPECT_TRUE(equal(mapped_range(int8, true, false), -127, 127));
  EXPECT_TRUE(equal(mapped_range(uint8, true, false), 0, 255));
  EXPECT_TRUE(equal(mapped_range(int8, false, true), -64, 64));
  EXPECT_TRUE(equal(mapped_range(uint8, false, true), 0, 127));
  EXPECT_TRUE(equal(mapped_range(uint16, false, true), 0, 32767));
}

TEST(Formats, PowersOfTwoCoverTheRangeOfFourBits) {
  const auto p = compute_params(-3.0F, 2.0F, {int4, true, false, true});
  EXPECT_EQ(p.scale, 0.5F);  // 6 / 15 is 0.4
  EXPECT_EQ(p.zero_point, 0);
}

}  // namespace
}  // namespace detent::quantization
