// What OpenVINO's kernels take along, and what attributes keep from integers.
#include "checking/openvino_rules.h"

#include <gtest/gtest.h>

#include "onnx/write.h"

namespace detent::checking {
namespace {

using Names = std::vector<std::string>;

struct Net {
  onnx::Model model;
  std::optional<graph::Index> index;

  Net() {
    model.path = "test.onnx";
    model.set_opset("", 17);
    const std::vector<float> scale{0.5F}, weight(8, 1.0F);
    for (const auto* name : {"s", "c"})
      model.graph.initializers.push_back(
          onnx::make_tensor<float>(name, onnx::DataType::float32, {}, std::span<const float>(scale)));
    model.graph.initializers.push_back(
        onnx::make_tensor<float>("w", onnx::DataType::float32, {2, 4, 1, 1}, std::span<const float>(weight)));
    for (const auto* name : {"x", "v"})
      model.graph.inputs.push_back(onnx::make_value_info(name, onnx::DataType::float32, {}));
  }
  Net& node(const std::string& op, Names in, const std::string& out, std::vector<onnx::Attribute> attributes = {}) {
    model.graph.nodes.emplace_back(op, out, std::move(in), Names{out}, std::move(attributes));
    return *this;
  }
  /// The output of the node that takes the one that makes `name` along; empty: none.
  std::string along(const std::string& name) {
    index.emplace(model);
    const auto& node = model.graph.nodes[static_cast<std::size_t>(index->producer(name))];
    const int maker = runs_along_with(model, *index, node);
    return maker == graph::kNone ? "" : model.graph.nodes[static_cast<std::size_t>(maker)].outputs()[0];
  }
};

TEST(OpenVinoRules, ConvolutionsTakeSumsAlongAndWhatFollowsThem) {
  Net net;
  net.node("Conv", {"x", "w"}, "y").node("QuantizeLinear", {"y", "s"}, "q").node("DequantizeLinear", {"q", "s"}, "d");
  net.node("Add", {"v", "d"}, "sum").node("Relu", {"sum"}, "r");
  EXPECT_EQ(net.along("sum"), "y");
  EXPECT_EQ(net.along("r"), "sum");
  net.node("Neg", {"sum"}, "other");
  EXPECT_EQ(net.along("r"), "");
}

TEST(OpenVinoRules, MatrixProductsTakeABiasAlongAlone) {
  Net net;
  net.node("MatMul", {"x", "w"}, "y").node("Add", {"y", "c"}, "biased");
  net.node("MatMul", {"x", "w"}, "z").node("Add", {"z", "v"}, "sum");
  EXPECT_EQ(net.along("biased"), "y");
  EXPECT_EQ(net.along("sum"), "");
}

TEST(OpenVinoRules, WhatMovesValuesRunsAsWhatMovedThemBefore) {
  Net net;
  net.node("Slice", {"x", "s", "s"}, "y").node("Squeeze", {"y"}, "z").node("Reshape", {"v", "s"}, "r");
  EXPECT_EQ(net.along("z"), "y");
  EXPECT_EQ(net.along("r"), "");
}

TEST(OpenVinoRules, PointwiseConvolutionsWithStridesRunInFloat) {
  Net net;
  net.node("Conv", {"x", "w"}, "strided", {onnx::Attribute::of_ints("strides", {2, 2})});
  net.node("Conv", {"x", "w"}, "plain", {onnx::Attribute::of_ints("strides", {1, 1})});
  const graph::Index index(net.model);
  const Forms forms{{"u8"}, {"s8=/c", true}, {"u8"}};
  const auto found = beyond_table(net.model.graph.nodes[0], net.model, index, forms);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kernel, "float32");
  EXPECT_FALSE(found->remedy.empty());
  EXPECT_FALSE(beyond_table(net.model.graph.nodes[1], net.model, index, forms));
  const Forms floats{{"f32"}, {"f32"}, {"f32"}};
  EXPECT_FALSE(beyond_table(net.model.graph.nodes[0], net.model, index, floats));
}

}  // namespace
}  // namespace detent::checking
