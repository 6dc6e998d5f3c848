#include "remedies/trial_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace detent::remedies {
namespace {

using quantization::ValueAssignment;

const data::ParallelFor kSerial = [](std::size_t parts, const std::function<void(std::size_t)>& fn) {
  for (std::size_t i = 0; i < parts; ++i) fn(i);
};

TEST(FakeQuantize, RoundsHalfToEvenAndSaturates) {
  const ValueAssignment params{QuantType::uint8, {}, {{0.5F, 10}}, "x", {}, {}};
  std::vector<float> values{0, 0.25F, 0.75F, -0.25F, 0.3F, -1000, 1000, 122.5F};
  fake_quantize(values, std::vector<std::int64_t>{8}, params);
  EXPECT_EQ(values, (std::vector<float>{0, 0, 1, 0, 0.5F, -5, 122.5F, 122.5F}));
}

TEST(FakeQuantize, EachChannelHasItsScale) {
  const ValueAssignment params{
      QuantType::int8, quantization::Granularity::along(1), {{1.0F, 0}, {0.1F, 0}}, "w", {}, {}};
  std::vector<float> values{0.4F, 0.6F, 0.14F, 0.16F, 200, -200, 20, -20};
  fake_quantize(values, std::vector<std::int64_t>{2, 2, 2}, params);
  const std::vector<float> expected{0, 1, 0.1F, 0.2F, 127, -128, 12.7F, -12.8F};
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_FLOAT_EQ(values[i], expected[i]) << i;
}

TEST(Dequantize, OfEachTypeAsStored) {
  const auto stored_as = [](QuantType type, std::vector<std::uint8_t> bytes, std::int32_t zero) {
    std::vector<float> values(3);
    dequantize(values, std::vector<std::int64_t>{3}, {type, {}, {{0.5F, zero}}, "w", {}, {}},
               std::as_bytes(std::span<const std::uint8_t>(bytes)));
    return values;
  };
  EXPECT_EQ(stored_as(QuantType::int8, {0x80, 0xff, 0x7f}, 0), (std::vector<float>{-64, -0.5F, 63.5F}));
  EXPECT_EQ(stored_as(QuantType::uint8, {0, 0xff, 0x80}, 128), (std::vector<float>{-64, 63.5F, 0}));
  EXPECT_EQ(stored_as(QuantType::int16, {0, 0x80, 1, 0, 0xff, 0xff}, 0), (std::vector<float>{-16384, 0.5F, -0.5F}));
  EXPECT_EQ(stored_as(QuantType::uint16, {0, 0x80, 1, 0, 0xff, 0xff}, 0), (std::vector<float>{16384, 0.5F, 32767.5F}));
  EXPECT_EQ(stored_as(QuantType::int4, {0x78, 0x0f}, 0), (std::vector<float>{-4, 3.5F, -0.5F}));
  EXPECT_EQ(stored_as(QuantType::uint4, {0x78, 0x0f}, 8), (std::vector<float>{0, -0.5F, 3.5F}));
}

TEST(Dequantize, EachChannelHasItsScaleAndZeroPoint) {
  const std::vector<std::uint8_t> stored{1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> values(8);
  dequantize(values, std::vector<std::int64_t>{2, 2, 2},
             {QuantType::uint8, quantization::Granularity::along(1), {{1.0F, 0}, {10.0F, 3}}, "w", {}, {}},
             std::as_bytes(std::span<const std::uint8_t>(stored)));
  EXPECT_EQ(values, (std::vector<float>{1, 2, 0, 10, 5, 6, 40, 50}));
}

float passed(FakeQuantizer& quantizer, std::size_t tap, std::size_t count) {
  std::vector<float> values(count, 0.7F);
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(count)};
  const auto bytes = std::as_writable_bytes(std::span(values));
  quantizer.receive(tap, {onnx::DataType::float32, shape, bytes, bytes}, kSerial);
  for (const float v : values) EXPECT_EQ(v, values.front());
  return values.front();
}

TEST(FakeQuantizer, RoundsOnlyWhatIsSwitchedOn) {
  const auto roundings = roundings_of({{"a", {QuantType::uint8, {}, {{1.0F, 0}}, "a", {}, {}}},
                                       {"b", {QuantType::uint8, {}, {{1.0F, 0}}, "b", {}, {}}}});
  FakeQuantizer quantizer;
  quantizer.expect({"a", "", "b"});
  EXPECT_EQ(passed(quantizer, 0, 5), 0.7F);
  const Trial first{{"a", &roundings.at("a")}, {"unknown", &roundings.at("b")}};
  quantizer.set_trial(&first);
  EXPECT_EQ(passed(quantizer, 0, 5), 1.0F);
  EXPECT_EQ(passed(quantizer, 0, 200'001), 1.0F) << "in several pieces";
  EXPECT_EQ(passed(quantizer, 1, 5), 0.7F);
  EXPECT_EQ(passed(quantizer, 2, 5), 0.7F);
  const Trial second{{"b", &roundings.at("b")}};
  quantizer.set_trial(&second);
  EXPECT_EQ(passed(quantizer, 0, 5), 0.7F);
  EXPECT_EQ(passed(quantizer, 2, 5), 1.0F);
  quantizer.set_trial(nullptr);
  EXPECT_EQ(passed(quantizer, 2, 5), 0.7F);
}

TEST(FakeQuantize, BlocksAlongAnyAxisHaveScalesOfTheirOwn) {
  // Three rows in blocks of two along axis 0: rows 0 and 1 of a column share a scale, row 2 has its own.
  std::vector<float> values{1.4F, 1.4F, 1.4F, 1.4F, 1.4F, 1.4F};
  const ValueAssignment columns{
      QuantType::int8, quantization::Granularity::blocks(0, 2), {{1, 0}, {0.5F, 0}, {0.1F, 0}, {0.2F, 0}}, "w", {}, {}};
  fake_quantize(values, std::vector<std::int64_t>{3, 2}, columns);
  EXPECT_EQ(values, (std::vector<float>{1, 1.5F, 1, 1.5F, 14 * 0.1F, 7 * 0.2F}));
  std::vector<float> last{1.4F, 1.4F, 1.4F, 1.4F, 1.4F, 1.4F};
  const ValueAssignment rows{
      QuantType::int8, quantization::Granularity::blocks(1, 2), {{1, 0}, {0.5F, 0}, {0.1F, 0}, {0.2F, 0}}, "w", {}, {}};
  fake_quantize(last, std::vector<std::int64_t>{2, 3}, rows);
  EXPECT_EQ(last, (std::vector<float>{1, 1, 1.5F, 14 * 0.1F, 14 * 0.1F, 7 * 0.2F}));
}

TEST(FakeQuantizer, MultipliesChannelsBeforeTheyAreRounded) {
  Rounding rounding{{QuantType::uint8, {}, {{1.0F, 128}}, "a", {}, {}}, {1, 0.5F, 4}, 1};
  FakeQuantizer quantizer;
  quantizer.expect({"a"});
  const Trial trial{{"a", &rounding}};
  quantizer.set_trial(&trial);
  const std::vector<float> given{1.2F, -3.4F, 5, 7, 0.3F, 0.1F};
  const auto rounded = [&](std::vector<std::int64_t> shape) {
    std::vector<float> values = given;
    const auto bytes = std::as_writable_bytes(std::span(values));
    quantizer.receive(0, {onnx::DataType::float32, shape, bytes, bytes}, kSerial);
    return values;
  };
  // By hand: channels of two elements, x · f rounded, over f.
  EXPECT_EQ(rounded({1, 3, 2}), (std::vector<float>{1, -3, 4, 8, 0.25F, 0}));
  rounding.factor_axis = -1;
  EXPECT_EQ(rounded({2, 3}), (std::vector<float>{1, -4, 5, 7, 0, 0}));
}

TEST(FakeQuantizer, ConstantsAreRoundedAlikeInEveryRun) {
  using quantization::Granularity;
  const std::vector<std::int64_t> shape{4, 3, 6};
  std::vector<float> given(72);
  for (std::size_t i = 0; i < given.size(); ++i) given[i] = static_cast<float>((i * 37) % 72) * 0.71F - 22;
  const auto slices = [](std::size_t count, std::int32_t zero) {
    std::vector<quantization::ScaleZeroPoint> all;
    for (std::size_t s = 0; s < count; ++s)
      all.push_back({0.3F + 0.11F * static_cast<float>(s), zero + static_cast<std::int32_t>(s)});
    return all;
  };
  const std::pair<Granularity, std::size_t> layouts[] = {{{}, 1},
                                                         {Granularity::along(0), 4},
                                                         {Granularity::along(1), 3},
                                                         {Granularity::along(2), 6},
                                                         {Granularity::blocks(2, 4), 24},
                                                         {Granularity::blocks(0, 2), 36}};
  const std::pair<QuantType, std::int32_t> types[] = {
      {QuantType::int8, -3}, {QuantType::uint8, 100},    {QuantType::int4, -2},       {QuantType::uint4, 5},
      {QuantType::int16, 7}, {QuantType::uint16, 30000}, {QuantType::float8e4m3fn, 0}};
  for (const auto& [type, zero] : types) {
    for (const auto& [granularity, count] : layouts) {
      auto params = ValueAssignment{type, granularity, slices(count, zero), "w", {}, {}};
      if (is_float(type)) {
        for (auto& p : params.slices) p.zero_point = 0;
      }
      std::vector<float> expected = given;
      fake_quantize(expected, shape, params);
      const Rounding rounding{params};
      const Trial trial{{"w", &rounding}};
      FakeQuantizer quantizer;
      quantizer.expect_constants({"w"});
      quantizer.expect({"w"});
      quantizer.set_trial(&trial);
      for (int run = 0; run < 2; ++run) {
        std::vector<float> values = given;
        const auto bytes = std::as_writable_bytes(std::span(values));
        quantizer.receive(0, {onnx::DataType::float32, shape, bytes, bytes}, kSerial);
        EXPECT_EQ(values, expected) << static_cast<int>(type) << ", run " << run << ", slices " << count;
      }
    }
  }
}

}  // namespace
}  // namespace detent::remedies
