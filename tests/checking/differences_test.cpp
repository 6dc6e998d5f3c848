// Differences in steps, of integers and of floats.
#include "checking/diagnosis.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace detent::checking {
namespace {

template <class T>
data::Array array(onnx::DataType type, const std::vector<T>& values) {
  const auto held = std::make_shared<std::vector<T>>(values);
  return {type, {static_cast<std::int64_t>(values.size())}, std::as_bytes(std::span<const T>(*held)), held};
}

TEST(Differences, OfIntegersAreSteps) {
  Differences d;
  d.add(array<std::uint8_t>(onnx::DataType::uint8, {0, 255, 7, 7}),
        array<std::uint8_t>(onnx::DataType::uint8, {255, 255, 8, 7}), 1, "v");
  EXPECT_EQ(d.max_steps, 255);
  EXPECT_EQ(d.share(), 0.5);
  EXPECT_EQ(d.share_over_one(), 0.25);
  d.add(array<std::int16_t>(onnx::DataType::int16, {-32768}), array<std::int16_t>(onnx::DataType::int16, {32767}), 1,
        "v");
  EXPECT_EQ(d.max_steps, 65535);
  EXPECT_EQ(d.elements, 5U);
}

TEST(Differences, OfFloatsCountFromAStepOn) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  Differences d;
  d.add(array<float>(onnx::DataType::float32, {1, 2, kNan, kInf}),
        array<float>(onnx::DataType::float32, {1.25F, 3, kNan, kInf}), 0.5, "v");
  EXPECT_EQ(d.max_steps, 2);
  EXPECT_EQ(d.share(), 0.25);
  d.add(array<float>(onnx::DataType::float32, {1}), array<float>(onnx::DataType::float32, {kNan}), 0.5, "v");
  EXPECT_TRUE(std::isinf(d.max_steps));
}

TEST(Differences, NeedTheSameTypesAndShapes) {
  Differences d;
  const auto x = array<std::uint8_t>(onnx::DataType::uint8, {1}),
             y = array<std::uint8_t>(onnx::DataType::uint8, {1, 2});
  EXPECT_THROW(d.add(x, y, 1, "v"), Error);
  EXPECT_THROW(d.add(x, array<std::int8_t>(onnx::DataType::int8, {1}), 1, "v"), Error);
}

}  // namespace
}  // namespace detent::checking
