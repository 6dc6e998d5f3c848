// What targets want of several values together, and of single operators.
#include "quantization/placement/placement.h"

#include <gtest/gtest.h>

#include "support.h"

namespace detent::quantization {
namespace {

using testing::Builder;
using testing::config;
using testing::kind;

QuantConfig target(const std::string& name) {
  return config([&](auto& c) { c.target = name; });
}

// Two convolutions and what joins them.
Builder two_branches(const std::string& join) {
  Builder b;
  b.input("x").constant("w", {4, 4, 1, 1}).constant("v", {4, 4, 1, 1});
  b.node("Conv", {"x", "w"}, {"a"}).node("Conv", {"a", "v"}, {"c"}).node("Relu", {"a"}, {"r"});
  return b
      .node(join, {"c", "r"}, {"y"},
            join == "Concat" ? std::vector{onnx::Attribute::of_int("axis", 1)} : std::vector<onnx::Attribute>{})
      .output("y");
}

TEST(Alignment, InputsOfConcatTakeTheScaleOfItsOutput) {
  const auto b = two_branches("Concat");
  const auto free = b.place();
  EXPECT_EQ(kind(free, "c"), "activation");
  const auto aligned = b.place(target("amd-npu:a8w8"));
  EXPECT_EQ(kind(aligned, "c"), "shares y");
  EXPECT_EQ(kind(aligned, "r"), "shares y");
  EXPECT_EQ(kind(aligned, "y"), "activation");
}

TEST(Alignment, WhatComesFromOutsideKeepsItsScale) {
  Builder b;
  b.input("x").constant("w", {4, 4, 1, 1}).node("Conv", {"x", "w"}, {"c"});
  b.node("Concat", {"x", "c"}, {"y"}, {onnx::Attribute::of_int("axis", 1)}).output("y");
  const auto placement = b.place(target("amd-npu:a8w8"));
  EXPECT_EQ(kind(placement, "x"), "activation");
  EXPECT_EQ(kind(placement, "c"), "shares y");
}

TEST(Alignment, ASumFusesWithTheConvolutionBeforeIt) {
  const auto b = two_branches("Add");
  EXPECT_EQ(kind(b.place(), "c"), "activation");
  const auto fused = b.place(target("tensorrt"));
  EXPECT_EQ(kind(fused, "c"), "");
  EXPECT_EQ(kind(fused, "r"), "activation");
}

TEST(Targets, ChannelsOnlyWhereTheTargetHasThem) {
  Builder b;
  b.input("x").constant("w", {4, 4, 1, 1}).node("Conv", {"x", "w"}, {"c"});
  b.constant("m", {4, 4}).node("Gemm", {"c", "m"}, {"y"}).output("y");
  EXPECT_EQ(kind(b.place(), "m"), "weight@1");
  const auto placement = b.place(target("tflite-like"));
  EXPECT_EQ(kind(placement, "m"), "weight");
  EXPECT_EQ(kind(placement, "w"), "weight@0");
}

TEST(Targets, ProductsOfActivationsAreInTheFormThatTheTargetRuns) {
  for (const auto* product : {"MatMul", "Gemm"}) {
    Builder b;
    b.input("x").input("z").constant("m", {4, 4});
    b.node("MatMul", {"x", "m"}, {"a"}).node(product, {"a", "z"}, {"y"}).output("y");
    EXPECT_NE(kind(b.place(), "z"), "");
    const auto placement = b.place(target("openvino"));
    const auto* second = placement.find("z");
    if (std::string(product) == "Gemm") {
      EXPECT_EQ(second, nullptr);
      continue;
    }
    ASSERT_NE(second, nullptr);
    EXPECT_TRUE(second->centred);
    EXPECT_TRUE(placement.find("a")->centred);
  }
}

TEST(Formats, PowersOfTwoToTheNearest) {
  IntFormat format{QuantType::int8, true, false, true};
  EXPECT_EQ(compute_params(-1.4F, 1.4F, format).scale, 1.0F / 64);
  format.nearest_power_of_two = true;
  EXPECT_EQ(compute_params(-1.4F, 1.4F, format).scale, 1.0F / 128);
  EXPECT_EQ(compute_params(-1.0F, 1.0F, format).scale, 1.0F / 128);
}

}  // namespace
}  // namespace detent::quantization
