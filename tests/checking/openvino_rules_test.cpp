// What OpenVINO's kernels take along, and what attributes keep from integers.
#include "checking/openvino_rules.h"

#include <gtest/gtest.h>

#include "config/targets.h"
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
    const std::vector<std::uint8_t> zeros{7}, middle{128}, least{0};
    const auto zero_point = [&](const char* name, const std::vector<std::uint8_t>& value) {
      model.graph.initializers.push_back(
          onnx::make_tensor<std::uint8_t>(name, onnx::DataType::uint8, {}, std::span<const std::uint8_t>(value)));
    };
    zero_point("z7", zeros);
    zero_point("z128", middle);
    zero_point("z0", least);
    for (const auto* name : {"x", "v"})
      model.graph.inputs.push_back(onnx::make_value_info(name, onnx::DataType::float32, {}));
  }
  Net& node(const std::string& op, Names in, const std::string& out, std::vector<onnx::Attribute> attributes = {}) {
    model.graph.nodes.emplace_back(op, out, std::move(in), Names{out}, std::move(attributes));
    return *this;
  }
  Net& pair(const std::string& in, const std::string& out, const std::string& zero = "z7") {
    return node("QuantizeLinear", {in, "s", zero}, out + "_q").node("DequantizeLinear", {out + "_q", "s", zero}, out);
  }
  const onnx::Node& made(const std::string& name) {
    index.emplace(model);
    return model.graph.nodes[static_cast<std::size_t>(index->producer(name))];
  }
  /// The precision that the neighbours decide; empty: they do not.
  std::string precision(const std::string& name, bool static_shapes = false) {
    const auto& node = made(name);
    const auto found = kernel_override(node, model, *index,
                                       signature_of(model, *index, node, config::target("openvino")), static_shapes);
    return found ? std::string(found->kernel) : "";
  }
  /// The output of the node that takes the one that makes `name` along; empty: none.
  std::string along(const std::string& name, bool static_shapes = false) {
    index.emplace(model);
    const auto& node = model.graph.nodes[static_cast<std::size_t>(index->producer(name))];
    const int maker = node_fused_into(model, *index, node, static_shapes);
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

TEST(OpenVinoRules, SumsRunInTheKernelOfWhatTheyAloneRead) {
  Net net;
  net.pair("x", "xd").node("Sigmoid", {"xd"}, "y").pair("y", "yd").pair("v", "vd").node("Add", {"vd", "yd"}, "sum");
  EXPECT_EQ(net.along("sum"), "y");
  net.node("Mul", {"vd", "yd"}, "other");
  EXPECT_EQ(net.along("sum"), "");
  EXPECT_EQ(net.precision("sum"), "int8");
}

TEST(OpenVinoRules, MatrixProductsTakeNoSumsAlong) {
  Net net;
  net.node("MatMul", {"x", "w"}, "y").node("Add", {"y", "c"}, "biased").node("Relu", {"biased"}, "r");
  net.node("Add", {"r", "v"}, "sum");
  EXPECT_EQ(net.along("r"), "biased");
  EXPECT_EQ(net.along("sum"), "");
}

TEST(OpenVinoRules, ConstantsKeepElementWiseOperatorsInFloat) {
  Net net;
  net.pair("x", "xd")
      .node("DequantizeLinear", {"c", "s", "z7"}, "cd")
      .node("Add", {"xd", "cd"}, "sum")
      .pair("sum", "end");
  EXPECT_EQ(net.precision("sum"), "") << "the table says so";
}

TEST(OpenVinoRules, WhatMovesValuesRunsAsWhatRepeatedThem) {
  Net net;  // keys and values of several heads
  net.pair("x", "xd").node("Expand", {"xd", "s"}, "e").node("Reshape", {"e", "s"}, "r").node("Transpose", {"r"}, "t");
  EXPECT_EQ(net.along("r"), "e");
  EXPECT_EQ(net.along("t"), "r");
}

TEST(OpenVinoRules, ANormOfRootsRunsInFloatUnlessItReadsTheIntegersOfAProduct) {
  const auto norm = [](bool of_product) {
    Net net;
    if (of_product)
      net.pair("v", "vd").node("DequantizeLinear", {"w", "s", "z0"}, "wd").node("MatMul", {"vd", "wd"}, "p");
    net.pair(of_product ? "p" : "x", "xd").node("Pow", {"xd", "c"}, "square").node("ReduceMean", {"square"}, "mean");
    net.node("Sqrt", {"mean"}, "root").node("Reciprocal", {"root"}, "r").pair("r", "rd", "z0");
    net.node("Mul", {"xd", "rd"}, "scaled").pair("scaled", "sd").node("Mul", {"sd", "c"}, "gained");
    net.node("Add", {"xd", "gained"}, "end");
    return net;
  };
  auto floats = norm(false);
  EXPECT_EQ(floats.along("scaled", true), "r");
  EXPECT_EQ(floats.along("gained", true), "scaled");
  auto integers = norm(true);
  EXPECT_EQ(integers.along("r", true), "");
  EXPECT_EQ(integers.precision("r", true), "int8");
  EXPECT_EQ(integers.along("scaled", true), "");
  EXPECT_EQ(integers.precision("scaled", true), "int8");
}

TEST(OpenVinoRules, AGuardOfASoftmaxIsCompiledWithWhatQuantizesIt) {
  Net net;
  net.node("Softmax", {"x"}, "p").pair("p", "pd", "z0").node("IsNaN", {"pd"}, "nan");
  net.node("Where", {"nan", "c", "pd"}, "guarded").pair("guarded", "end", "z0");
  net.pair("v", "vd").node("Where", {"nan", "c", "vd"}, "other").pair("other", "end2", "z0");
  EXPECT_EQ(net.precision("guarded", true), "int8");
  EXPECT_EQ(net.precision("guarded"), "");
  EXPECT_EQ(net.precision("other", true), "");
}

TEST(OpenVinoRules, ElementWiseOperatorsAreCompiledForStaticShapes) {
  Net net;
  net.pair("x", "xd").node("Sigmoid", {"xd"}, "y").node("Sqrt", {"y"}, "r").node("Neg", {"y"}, "n");
  net.node("HardSigmoid", {"xd"}, "h");
  EXPECT_EQ(net.precision("y"), "");
  EXPECT_EQ(net.precision("y", true), "int8");
  net.node("Neg", {"xd"}, "minus");
  EXPECT_EQ(net.precision("minus", true), "int8");
  EXPECT_EQ(net.precision("minus"), "");
  EXPECT_EQ(net.precision("h", true), "") << "it has a kernel of its own";
  EXPECT_EQ(net.along("r"), "") << "it has two readers";
  EXPECT_EQ(net.along("r", true), "y");
}

TEST(OpenVinoRules, ProductsOfActivationsWantZeroPointsThatVanish) {
  Net net;
  net.pair("x", "a", "z0").pair("v", "b", "z128").pair("v", "other");
  net.node("MatMul", {"a", "b"}, "good").node("MatMul", {"a", "other"}, "bad").node("MatMul", {"b", "b"}, "first");
  EXPECT_EQ(net.precision("good"), "int8");
  EXPECT_EQ(net.precision("bad"), "");
  EXPECT_EQ(net.precision("first"), "");
}

TEST(OpenVinoRules, QuantizeLinearMovesInFrontOfWhatMovesValues) {
  Net net;
  net.node("Reshape", {"x", "s"}, "r").node("Transpose", {"r"}, "t").pair("t", "end");
  EXPECT_EQ(net.precision("r"), "int8");
  EXPECT_EQ(net.along("t"), "");
  net.node("Reshape", {"v", "s"}, "last").pair("last", "more");
  EXPECT_EQ(net.precision("last"), "");
}

TEST(OpenVinoRules, LinearInterpolationIsInFloat) {
  Net net;
  net.pair("x", "xd").node("Resize", {"xd", "", "s"}, "y", {onnx::Attribute::of_string("mode", "linear")});
  net.node("Resize", {"xd", "", "s"}, "nearest");
  EXPECT_EQ(net.precision("y"), "float32");
  EXPECT_EQ(net.precision("nearest"), "");
}

TEST(OpenVinoRules, PointwiseConvolutionsWithStridesRunInFloat) {
  Net net;
  net.node("Conv", {"x", "w"}, "strided", {onnx::Attribute::of_ints("strides", {2, 2})});
  net.node("Conv", {"x", "w"}, "plain", {onnx::Attribute::of_ints("strides", {1, 1})});
  const graph::Index index(net.model);
  const Signature forms{{"u8"}, {"s8=/c", true}, {"u8"}};
  const auto found = kernel_override(net.model.graph.nodes[0], net.model, index, forms, false);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->kernel, "float32");
  EXPECT_FALSE(found->suggestion.empty());
  EXPECT_FALSE(kernel_override(net.model.graph.nodes[1], net.model, index, forms, false));
  const Signature floats{{"f32"}, {"f32"}, {"f32"}};
  EXPECT_FALSE(kernel_override(net.model.graph.nodes[0], net.model, index, floats, false));
}

}  // namespace
}  // namespace detent::checking
