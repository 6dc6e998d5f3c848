#include "accuracy/fake_quantizer.h"

#include <gtest/gtest.h>

#include <cmath>

namespace detent::accuracy {
namespace {

using quantization::ValueParams;

const exec::ParallelFor kSerial = [](std::size_t parts, const std::function<void(std::size_t)>& fn) {
  for (std::size_t i = 0; i < parts; ++i) fn(i);
};

TEST(FakeQuantize, RoundsHalfToEvenAndSaturates) {
  const ValueParams params{QuantType::uint8, {{0.5F, 10}}, {}, "x", {}};
  std::vector<float> values{0, 0.25F, 0.75F, -0.25F, 0.3F, -1000, 1000, 122.5F};
  fake_quantize(values, std::vector<std::int64_t>{8}, params);
  EXPECT_EQ(values, (std::vector<float>{0, 0, 1, 0, 0.5F, -5, 122.5F, 122.5F}));
}

TEST(FakeQuantize, EachChannelHasItsScale) {
  const ValueParams params{QuantType::int8, {{1.0F, 0}, {0.1F, 0}}, 1, "w", {}};
  std::vector<float> values{0.4F, 0.6F, 0.14F, 0.16F, 200, -200, 20, -20};
  fake_quantize(values, std::vector<std::int64_t>{2, 2, 2}, params);
  const std::vector<float> expected{0, 1, 0.1F, 0.2F, 127, -128, 12.7F, -12.8F};
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_FLOAT_EQ(values[i], expected[i]) << i;
}

TEST(FakeQuantizer, RoundsOnlyWhatIsSwitchedOn) {
  const quantization::Params params{{"a", {QuantType::uint8, {{1.0F, 0}}, {}, "a", {}}},
                                    {"b", {QuantType::uint8, {{1.0F, 0}}, {}, "b", {}}}};
  FakeQuantizer quantizer(params);
  quantizer.expect({"a", "", "b"});
  const auto passed = [&](std::size_t tap, std::size_t count) {
    std::vector<float> values(count, 0.7F);
    const std::vector<std::int64_t> shape{static_cast<std::int64_t>(count)};
    const auto bytes = std::as_writable_bytes(std::span(values));
    quantizer.receive(tap, {onnx::DataType::float32, shape, bytes, bytes}, kSerial);
    for (const float v : values) EXPECT_EQ(v, values.front());
    return values.front();
  };
  quantizer.switch_on({"a", "unknown"});
  EXPECT_EQ(passed(0, 5), 1.0F);
  EXPECT_EQ(passed(0, 200'001), 1.0F) << "in several pieces";
  EXPECT_EQ(passed(1, 5), 0.7F);
  EXPECT_EQ(passed(2, 5), 0.7F);
  quantizer.switch_on({"b"});
  EXPECT_EQ(passed(0, 5), 0.7F);
  EXPECT_EQ(passed(2, 5), 1.0F);
}

}  // namespace
}  // namespace detent::accuracy
