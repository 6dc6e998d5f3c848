#include "quantization/weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

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
        SCOPED_TRACE(testing::Message() << testing::PrintToString(dims) << " axis " << axis);
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
      SCOPED_TRACE(testing::Message() << testing::PrintToString(dims) << " axis " << axis);
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
          SCOPED_TRACE(testing::Message() << testing::PrintToString(dims) << " axis " << axis << " block " << block);
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
      SCOPED_TRACE(testing::Message() << testing::PrintToString(dims) << " axis " << axis);
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

}  // namespace
}  // namespace detent::quantization
