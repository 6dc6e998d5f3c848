#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "detent/error.h"
#include "onnx/packed_numbers.h"
#include "quantization/assignment.h"
#include "quantization/floats/half_values.h"
#include "quantization/formats.h"
#include "quantization/weights.h"
#include "support.h"

namespace detent::quantization {
namespace {

using Dims = std::vector<std::int64_t>;

std::size_t size_of(const Dims& dims) {
  std::size_t size = 1;
  for (const auto d : dims) size *= static_cast<std::size_t>(d);
  return size;
}

onnx::Tensor tensor(const Dims& dims, std::span<const float> values) {
  return onnx::make_tensor<float>("w", onnx::DataType::float32, dims, values);
}

std::vector<float> random_values(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (auto& v : values) v = normal(random);
  return values;
}

// The scale that a value with these indices reads, as ONNX defines it: by its index along the axis, or in a tensor of
// scales that counts the axis in blocks.
std::size_t slice_at(const Dims& dims, const Dims& at, const Granularity& granularity) {
  if (granularity.is_tensor()) return 0;
  if (granularity.kind == Granularity::Kind::axis) return static_cast<std::size_t>(at[granularity.axis]);
  std::int64_t slice = 0;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    const std::int64_t step = d == granularity.axis ? granularity.block : 1;
    slice = slice * ((dims[d] + step - 1) / step) + at[d] / step;
  }
  return static_cast<std::size_t>(slice);
}

// The slice of each value, by counting up all indices as an odometer does.
std::vector<std::size_t> slices_of(const Dims& dims, const Granularity& granularity) {
  std::vector<std::size_t> slices;
  Dims at(dims.size(), 0);
  for (std::size_t i = 0; i < size_of(dims); ++i) {
    slices.push_back(slice_at(dims, at, granularity));
    for (std::size_t d = dims.size(); d-- > 0;) {
      if (++at[d] < dims[d]) break;
      at[d] = 0;
    }
  }
  return slices;
}

// Four bits at a time from the low end, counted in bits instead of by halves of bytes.
std::vector<int> nibbles(const std::vector<std::byte>& bytes, std::size_t count, bool is_signed) {
  std::vector<int> out;
  for (std::size_t bit = 0; bit < 4 * count; bit += 4) {
    int value = 0;
    for (std::size_t b = 0; b < 4; ++b) {
      const bool set = ((static_cast<unsigned>(bytes.at((bit + b) / 8)) >> ((bit + b) % 8)) & 1U) != 0;
      const int weight = is_signed && b == 3 ? -8 : 1 << b;
      value += set ? weight : 0;
    }
    out.push_back(value);
  }
  return out;
}

std::vector<int> integers(const onnx::Tensor& quantized, QuantType type) {
  std::vector<std::byte> bytes;
  quantized.data.write_to([&](std::span<const std::byte> b) { bytes.insert(bytes.end(), b.begin(), b.end()); });
  EXPECT_EQ(bytes.size(), quantized.data.size());
  if (is_4_bit(type)) {
    const auto count = size_of(quantized.dims);
    EXPECT_EQ(bytes.size(), (count + 1) / 2);
    if (count % 2 == 1) {
      EXPECT_EQ(static_cast<int>(bytes.back()) >> 4, 0) << "padding";
    }
    return nibbles(bytes, count, is_signed(type));
  }
  std::vector<int> out;
  const std::size_t width = is_16_bit(type) ? 2 : 1;
  for (std::size_t i = 0; i < bytes.size(); i += width) {
    const int low = static_cast<int>(bytes[i]);
    int v = width == 2 ? low + 256 * static_cast<int>(bytes[i + 1]) : low;
    if (is_signed(type) && v > full_range(type).max) v -= width == 2 ? 65536 : 256;
    out.push_back(v);
  }
  return out;
}

int reference(float value, const ScaleZeroPoint& p, QuantType type) {
  const float q = std::nearbyint(value / p.scale) + static_cast<float>(p.zero_point);
  const IntRange clip = full_range(type);
  if (q < static_cast<float>(clip.min)) return clip.min;
  return q > static_cast<float>(clip.max) ? clip.max : static_cast<int>(q);
}

void check(const Dims& dims, const Granularity& granularity, QuantType type, bool symmetric, unsigned seed) {
  auto values = random_values(size_of(dims), seed);
  if (!values.empty()) values[values.size() / 2] = 1e9F;  // beyond what the trick of adding 1.5 * 2^23 could round
  const auto slices = slices_of(dims, granularity);
  const std::size_t count = size_of(scale_dims(granularity, dims));
  ASSERT_EQ(slice_count(granularity, dims), count);
  const auto w = tensor(dims, values);

  const auto extremes = weight_extremes(w, granularity);
  ASSERT_EQ(extremes.size(), count);
  std::vector<float> low(count, std::numeric_limits<float>::infinity()),
      high(count, -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < values.size(); ++i) {
    low[slices[i]] = std::min(low[slices[i]], values[i]);
    high[slices[i]] = std::max(high[slices[i]], values[i]);
  }
  for (std::size_t c = 0; c < count; ++c) {
    ASSERT_EQ(extremes[c].empty(), values.empty());
    if (values.empty()) continue;
    ASSERT_EQ(extremes[c].lowest(), low[c]);
    ASSERT_EQ(extremes[c].highest(), high[c]);
  }

  // Parameters that saturate some values: scales differ by slice and do not cover the outlier.
  std::vector<ScaleZeroPoint> params;
  for (std::size_t c = 0; c < count; ++c) {
    const float bound = 1.5F + 0.01F * static_cast<float>(c % 100);
    params.push_back(compute_params(-bound, bound * (symmetric ? 1.0F : 1.3F), {type, symmetric, false}));
  }
  const auto quantized = quantized_weight(w, "w_quantized", {{type, symmetric}, granularity}, params);
  EXPECT_EQ(quantized.name, "w_quantized");
  EXPECT_EQ(quantized.dims, dims);
  EXPECT_EQ(quantized.type, data_type(type));
  for (int repeat = 0; repeat < 2; ++repeat) {  // the data can be made again
    const auto got = integers(quantized, type);
    ASSERT_EQ(got.size(), values.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], reference(values[i], params[slices[i]], type)) << "element " << i << " of value " << values[i];
    }
  }
}

TEST(Weights, EveryAxisOfEveryRankEqualsNaiveCode) {
  unsigned seed = 0;
  const std::vector<Dims> shapes{{37},         {1},           {5, 7},       {64, 1},       {1, 64},
                                 {3, 4, 5},    {8, 1, 9},     {2, 3, 4, 5}, {16, 1, 3, 3}, {1, 1, 3, 3},
                                 {7, 5, 1, 1}, {6, 70, 1, 2}, {0, 4},       {4, 0, 2}};
  for (const auto& dims : shapes) {
    for (const auto type :
         {QuantType::int8, QuantType::uint8, QuantType::int16, QuantType::uint16, QuantType::int4, QuantType::uint4}) {
      for (std::size_t axis = 0; axis <= dims.size(); ++axis) {
        SCOPED_TRACE(::testing::Message() << ::testing::PrintToString(dims) << " axis " << axis);
        check(dims, axis == dims.size() ? Granularity::tensor() : Granularity::along(axis), type, seed % 2 == 0, seed);
        ++seed;
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Weights, AScalarHasOneChannel) { check({}, Granularity::tensor(), QuantType::int8, true, 1); }

TEST(Weights, SizesAroundTheBordersOfPieces) {
  constexpr std::int64_t kPiece = 64 << 10;
  const std::vector<Dims> shapes{{kPiece - 1},        {kPiece},    {kPiece + 1}, {2 * kPiece + 3}, {3, kPiece + 5},
                                 {kPiece / 2 + 1, 3}, {5, 331, 97}};
  for (const auto& dims : shapes) {
    for (std::size_t axis = 0; axis <= dims.size(); ++axis) {
      SCOPED_TRACE(::testing::Message() << ::testing::PrintToString(dims) << " axis " << axis);
      for (const auto type : {axis == 1 ? QuantType::uint8 : QuantType::int8, QuantType::int4})
        check(dims, axis == dims.size() ? Granularity::tensor() : Granularity::along(axis), type, false, 99);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Weights, BlocksOnEveryAxisEqualNaiveCode) {
  unsigned seed = 0;
  const std::vector<Dims> shapes{{37},      {1},       {5, 7},       {64, 1}, {33, 6},
                                 {3, 4, 5}, {8, 1, 9}, {2, 3, 4, 5}, {0, 4},  {4, 0, 2}};
  for (const auto& dims : shapes) {
    for (std::size_t axis = 0; axis < dims.size(); ++axis) {
      for (const std::int64_t block : {1, 2, 3, 4, 32, 64}) {
        for (const auto type :
             {QuantType::int8, QuantType::uint8, QuantType::int16, QuantType::int4, QuantType::uint4}) {
          SCOPED_TRACE(::testing::Message()
                       << ::testing::PrintToString(dims) << " axis " << axis << " block " << block);
          check(dims, Granularity::blocks(axis, block), type, seed % 2 == 0, seed);
          ++seed;
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(Weights, BlocksAcrossTheBordersOfPieces) {
  constexpr std::int64_t kPiece = 64 << 10;
  const std::vector<Dims> shapes{{kPiece + 1}, {3, kPiece + 5}, {kPiece / 2 + 1, 3}, {5, 331, 97}};
  for (const auto& dims : shapes) {
    for (std::size_t axis = 0; axis < dims.size(); ++axis) {
      SCOPED_TRACE(::testing::Message() << ::testing::PrintToString(dims) << " axis " << axis);
      for (const std::int64_t block : {32, 100})
        check(dims, Granularity::blocks(axis, block), QuantType::uint4, false, 7);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Weights, ScalesOfBlocksHaveTheTensorsRank) {
  EXPECT_EQ(scale_dims(Granularity::tensor(), {4, 70}), Dims{});
  EXPECT_EQ(scale_dims(Granularity::along(1), {4, 70}), Dims{70});
  EXPECT_EQ(scale_dims(Granularity::blocks(1, 32), {4, 70}), (Dims{4, 3}));
  EXPECT_EQ(scale_dims(Granularity::blocks(0, 2), {5, 70}), (Dims{3, 70}));
  EXPECT_EQ(scale_dims(Granularity::blocks(0, 8), {0, 3}), (Dims{0, 3}));
}

std::vector<int> quantize(const std::vector<float>& values, QuantType type, ScaleZeroPoint params,
                          const Granularity& granularity = {}) {
  const Dims dims{1, static_cast<std::int64_t>(values.size())};
  const std::vector<ScaleZeroPoint> all(slice_count(granularity, dims), params);
  return integers(quantized_weight(tensor(dims, values), "q", {{type, true}, granularity}, all), type);
}

TEST(Weights, RoundsHalfToEvenInBothKernels) {
  const std::vector<float> values{0.25F,  0.75F,  1.25F,   1.75F,    -0.25F, -0.75F,
                                  -1.25F, -1.75F, 0.2499F, -0.2501F, 63.25F, -63.75F};
  const std::vector<int> expected{0, 2, 2, 4, 0, -2, -2, -4, 0, -1, 126, -128};
  EXPECT_EQ(quantize(values, QuantType::int8, {0.5F, 0}), expected);
  EXPECT_EQ(quantize(values, QuantType::int8, {0.5F, 0}, Granularity::along(1)), expected);
}

TEST(Weights, RoundsBeforeTheZeroPointIsAdded) {
  // 0.5 rounds to 0 and 1.5 to 2; rounding the sum with an odd zero point would give the neighbours.
  EXPECT_EQ(quantize({0.5F, 1.5F, 2.5F, -0.5F}, QuantType::uint8, {1.0F, 3}), (std::vector<int>{3, 5, 5, 3}));
}

TEST(Weights, SaturatesAtTheFullRangeOfTheType) {
  const float huge = std::numeric_limits<float>::max();
  const std::vector<float> values{-127.4F, -127.6F, -128.5F, -129.0F, -huge, 127.4F, 127.5F, 128.0F, huge};
  const std::vector<int> expected{-127, -128, -128, -128, -128, 127, 127, 127, 127};
  EXPECT_EQ(quantize(values, QuantType::int8, {1.0F, 0}), expected);
  EXPECT_EQ(quantize(values, QuantType::int8, {1.0F, 0}, Granularity::along(1)), expected);
  EXPECT_EQ(quantize({-huge, -1.0F, 65534.5F, 65535.5F, huge}, QuantType::uint16, {1.0F, 0}),
            (std::vector<int>{0, 0, 65534, 65535, 65535}));
  EXPECT_EQ(quantize({-huge, 40000.0F, huge}, QuantType::uint16, {1.0F, 65535}), (std::vector<int>{0, 65535, 65535}));
}

TEST(Weights, FourBitsFillEachByteFromTheLowEnd) {
  const auto bytes_of = [](const std::vector<float>& values, QuantType type) {
    const Dims dims{static_cast<std::int64_t>(values.size())};
    const auto quantized = quantized_weight(tensor(dims, values), "q", {{type, true}, {}}, {{1.0F, 0}});
    std::vector<int> bytes;
    quantized.data.write_to([&](std::span<const std::byte> b) {
      for (const auto byte : b) bytes.push_back(static_cast<int>(byte));
    });
    return bytes;
  };
  EXPECT_EQ(bytes_of({1, -2, -8, 7, -1}, QuantType::int4), (std::vector<int>{0xe1, 0x78, 0x0f}));
  EXPECT_EQ(bytes_of({1, 14, 15, 0, 9}, QuantType::uint4), (std::vector<int>{0xe1, 0x0f, 0x09}));
  EXPECT_EQ(bytes_of({-100, 100, -7.5F, 7.5F}, QuantType::int4), (std::vector<int>{0x78, 0x78}));
}

TEST(Weights, DividesInsteadOfMultiplyingByTheInverse) {
  // Rounded differently by value * (1 / scale) than by value / scale, in float.
  std::mt19937 random(4);
  std::uniform_real_distribution<float> scale_of(0.001F, 0.02F);
  std::size_t telling = 0;
  for (int i = 0; i < 20000; ++i) {
    const float scale = scale_of(random);
    const float value = scale * (static_cast<float>(static_cast<int>(random() % 250) - 125) + 0.5F);
    const ScaleZeroPoint p{scale, 0};
    telling += std::nearbyint(value / scale) != std::nearbyint(value * (1.0F / scale)) ? 1 : 0;
    ASSERT_EQ(quantize({value}, QuantType::int8, p)[0], reference(value, p, QuantType::int8));
  }
  EXPECT_GT(telling, 100u);
}

TEST(Weights, ChannelsWithoutElementsGetNeutralParameters) {
  const auto params = weight_params(std::vector<calibration::KeyRange>(2), {});
  ASSERT_EQ(params.size(), 2u);
  EXPECT_EQ(params[0].scale, 1.0F);
  EXPECT_EQ(params[0].zero_point, 0);
}

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

using testing::Builder;
using testing::config;

Assignment compute(const Builder& b, const calibration::Ranges& ranges, const QuantConfig& options = {}) {
  auto placement = b.place(options);
  auto proposals = testing::proposals(ranges);
  proposals.constants = scan_weights(b.model, placement, false);
  return assign(b.model, std::move(placement), proposals, options);
}

// Conv of three slices whose weights are ±1e-6, ±1e-3 and ±2, read behind a tiny input.
Builder with_bias(const std::vector<float>& bias) {
  Builder b;
  b.input("x").constant("w", {3, 2, 1, 1}, {1e-6F, -1e-6F, 1e-3F, 1e-3F, -2.0F, 0.0F}).constant("b", {3}, bias);
  b.node("Conv", {"x", "w", "b"}, {"y"});
  return b;
}

const calibration::Ranges kTinyInput{{"x", {0.0F, 0.001F}}, {"y", {-1.0F, 1.0F}}};

// The expected scales: onnxruntime 1.31.1, QDQQuantizer._adjust_weight_scale_for_int32_bias with input scale
// 0x1.072c0ap-18 and compute_scale_zp's weight scales 0x1.0e8c94p-27, 0x1.083548p-17, 0x1.020408p-6.
TEST(BiasScales, AreRaisedPerChannelAsOnnxRuntimeDoes) {
  const auto w = compute(with_bias({30000.0F, -7.5F, 100.0F}), kTinyInput).values.at("w");
  ASSERT_EQ(w.slices.size(), 3u);
  EXPECT_EQ(w.slices[0].scale, 0x1.c80568p+1F);
  EXPECT_EQ(w.slices[1].scale, 0x1.d2f732p-11F);
  EXPECT_EQ(w.slices[2].scale, 0x1.020408p-6F);
}

TEST(BiasScales, AreRaisedForTheLargestBiasWithoutChannels) {
  const auto options = config([](auto& c) { c.per_channel = false; });
  EXPECT_EQ(compute(with_bias({30000.0F, -7.5F, 100.0F}), kTinyInput, options).values.at("w").slices.at(0).scale,
            0x1.c80568p+1F);
  EXPECT_EQ(compute(with_bias({-7.5F, 100.0F, -30000.0F}), kTinyInput, options).values.at("w").slices.at(0).scale,
            0x1.c80568p+1F);
}

TEST(BiasScales, StayWhereTheBiasFits) {
  const auto w = compute(with_bias({0.0F, 0.0F, 100.0F}), kTinyInput).values.at("w");
  EXPECT_EQ(w.slices[0].scale, 0x1.0e8c94p-27F);
  EXPECT_EQ(w.slices[1].scale, 0x1.083548p-17F);
  EXPECT_EQ(w.slices[2].scale, 0x1.020408p-6F);
}

TEST(BiasScales, RiseForUnsignedWeightsToo) {
  const auto options = config([](auto& c) {
    c.weight_type = QuantType::uint8;
    c.per_channel = false;
  });
  Builder b;  // no negative weights: the zero point is 0 all the same
  b.input("x")
      .constant("w", {1, 2, 1, 1}, {1e-6F, 2e-6F})
      .constant("b", {1}, {3e4F})
      .node("Conv", {"x", "w", "b"}, {"y"});
  const auto values = compute(b, kTinyInput, options).values;
  const auto w = values.at("w").slices.at(0);
  EXPECT_EQ(w.zero_point, 0);
  EXPECT_GT(w.scale, static_cast<float>(static_cast<double>(2e-6F) / 255));
  EXPECT_LE(3e4 / (static_cast<double>(values.at("x").slices.at(0).scale) * w.scale), 2147483647.0);
}

TEST(BiasScales, EveryBiasThenFitsInt32) {
  for (float bias = 1e-6F; bias < 1e30F; bias *= 1.4F) {
    const auto params = compute(with_bias({bias, -bias, 0.5F * bias}), kTinyInput).values;
    for (std::size_t c = 0; c < 3; ++c) {
      const double scale = params.at("x").slices[0].scale * params.at("w").slices[c].scale;
      EXPECT_LE(static_cast<double>(bias) / scale, c == 2 ? 2.0 * 2147483647.0 : 2147483647.0) << bias;
    }
  }
}

TEST(BiasScales, BetaCountsAsPartOfTheBias) {
  Builder b;
  b.input("x").constant("w", {1, 1}, {1.0F}).constant("b", {1}, {1e4F});
  b.node("Gemm", {"x", "w", "b"}, {"y"}, {onnx::Attribute::of_float("beta", 1e6F)});
  const auto params = compute(b, kTinyInput).values;
  EXPECT_LE(1e4 * 1e6 / (params.at("x").slices[0].scale * params.at("w").slices[0].scale), 2147483647.0);
}

TEST(Assign, SharesAlongChainsInAnyOrder) {
  Builder b;
  b.input("x").constant("w", {3, 3, 1, 1}).node("Conv", {"x", "w"}, {"c"});
  b.node("Reshape", {"c"}, {"r"}).node("Transpose", {"r"}, {"t"});
  auto placement = b.place();
  std::reverse(placement.marks.begin(), placement.marks.end());
  auto proposals = testing::proposals({{"x", {0, 1}}, {"c", {-1, 3}}});
  proposals.constants = scan_weights(b.model, placement, false);
  const auto assignment = assign(b.model, placement, proposals, {});
  const auto& params = assignment.values;
  for (const char* value : {"r", "t"}) {
    EXPECT_EQ(params.at(value).source, "c");
    EXPECT_EQ(params.at(value).slices.at(0).scale, params.at("c").slices.at(0).scale);
  }
  EXPECT_EQ(params.at("c").slices[0].zero_point, 64);  // 4 / 255 a step: 1 is 63.75 steps from the bottom
  EXPECT_TRUE(assignment.notes.empty());
}

TEST(Assign, NotesValuesThatWereNeverSeenAndThoseThatShareWithThem) {
  Builder b;
  b.input("x").constant("w", {3, 3, 1, 1}).node("Conv", {"x", "w"}, {"c"}).node("Reshape", {"c"}, {"r"});
  const auto result = compute(b, {{"x", {0, 1}}});
  EXPECT_FALSE(result.values.contains("c"));
  EXPECT_FALSE(result.values.contains("r"));
  ASSERT_EQ(result.notes.size(), 2u);
  EXPECT_NE(result.notes[0].find("'c' stays in float"), std::string::npos);
  EXPECT_NE(result.notes[1].find("'r' stays in float"), std::string::npos);
}

TEST(ConstantFormat, PerChannelIsAlwaysSymmetric) {
  Mark mark{"w", true, true, Granularity::along(0), {}};
  const auto options = config([](auto& c) {
    c.weight_type = QuantType::uint8;
    c.weight_symmetric = false;
  });
  EXPECT_TRUE(constant_format(mark, options).symmetric);
  mark.granularity = Granularity::tensor();
  EXPECT_FALSE(constant_format(mark, options).symmetric);
  EXPECT_TRUE(constant_format(mark, {}).symmetric);  // int8 unless told otherwise
  mark.is_weight = false;
  EXPECT_EQ(constant_format(mark, {}).type, QuantType::uint8);
  EXPECT_FALSE(constant_format(mark, {}).symmetric);
}

TEST(ConstantFormat, ChannelsOfZerosAreAsOthersButWhereQuantizeStaticIsFollowed) {
  const auto zero_points = [](const std::string& preset) {
    Builder b;
    b.input("x").constant("w", {3, 1, 1, 1}, {1, 0, -2}).node("Conv", {"x", "w"}, {"y"});
    const auto options = config([&](auto& c) {
      c.preset = preset;
      c.weight_type = QuantType::uint8;
      c.weight_symmetric = true;
    });
    const auto assigned = compute(b, {{"x", {0, 1}}, {"y", {0, 1}}}, options);
    std::vector<int> found;
    for (const auto& p : assigned.values.at("w").slices) found.push_back(p.zero_point);
    return found;
  };
  EXPECT_EQ(zero_points("balanced"), (std::vector<int>{128, 128, 128}));
  EXPECT_EQ(zero_points("plain"), (std::vector<int>{128, 0, 128}));
}

TEST(ScanWeights, NonfiniteWeightsStopOrStayInFloat) {
  Builder b = with_bias({0, 0, 0});
  b.constant("bad", {3, 3, 1, 1}, {1, 2, std::numeric_limits<float>::quiet_NaN(), 4, 5, 6, 7, 8, 9})
      .node("Conv", {"y", "bad"}, {"z"});
  auto placement = b.place();
  try {
    scan_weights(b.model, placement, false);
    ADD_FAILURE() << "NaN was accepted";
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("'bad' (Conv 'n_z')"), std::string::npos) << text;
  }
  placement = b.place();
  const auto extremes = scan_weights(b.model, placement, true);
  EXPECT_FALSE(extremes.contains("bad"));
  EXPECT_EQ(testing::find(placement, "bad"), nullptr);
  EXPECT_NE(testing::find(placement, "w"), nullptr);
  EXPECT_EQ(placement.notes.size(), 1u);
}

TEST(Zeros, HaveTheScaleOfWhatReadsThemOnTheHtp) {
  Builder b;
  b.input("x").constant("w", {4, 4, 1, 1}).constant("zeros", {1, 4, 1, 1}, {0, 0, 0, 0});
  b.constant("other", {1, 4, 1, 1}).node("Conv", {"x", "w"}, {"c"}).node("Concat", {"zeros", "c"}, {"y"});
  b.node("Mul", {"y", "other"}, {"z"}).output("z");
  const calibration::Ranges ranges{
      {"x", {-1.0F, 3.0F}}, {"c", {-2.0F, 2.0F}}, {"y", {-2.0F, 3.0F}}, {"z", {-8.0F, 8.0F}}};
  for (const std::string target : {"qnn:a16", "qnn", "amd-npu:a16w8"}) {
    const auto options = config([&](auto& c) {
      c.target = target;
      if (target == "qnn:a16") c.activation_type = QuantType::uint16;
      if (target == "amd-npu:a16w8") c.activation_type = QuantType::int16;
    });
    const auto values = compute(b, ranges, options).values;
    const auto &zeros = values.at("zeros").slices.at(0), &result = values.at("y").slices.at(0);
    if (target.starts_with("qnn")) {
      EXPECT_EQ(zeros.scale, result.scale);
      EXPECT_EQ(zeros.zero_point, result.zero_point);
    } else {
      EXPECT_EQ(zeros.scale, 1.0F);
    }
    EXPECT_NE(values.at("other").slices.at(0).scale, result.scale);
  }
}

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
