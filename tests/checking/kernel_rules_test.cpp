#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checking/openvino_rules.h"
#include "checking/ort_rules.h"
#include "checking/signature.h"
#include "config/targets.h"
#include "onnx/write.h"

namespace detent::checking {
namespace {

// The tables: what is found for forms that stand in them, and for those next to them.

Signature forms(const std::string& first, const std::string& second, const std::string& output) {
  return {{first}, {second, second.find('/') != std::string::npos}, {output}};
}

std::string kernel(const Table& table, std::string_view op_type, const Signature& f) {
  const auto* row = table.find(op_type, f);
  return row == nullptr ? "" : std::string(row->kernel);
}

TEST(Table, RowsWithAlternativesAndAny) {
  const Table table("# comment\nConv|Gemm\tu8|s8=\ts8=/c\t*\tint8\twhy\n*\tf32\t*\t*\tfloat32\n");
  EXPECT_EQ(kernel(table, "Gemm", forms("s8=", "s8=/c", "f32")), "int8");
  EXPECT_EQ(table.find("Conv", forms("u8", "s8=/c", "u8"))->rule, "why");
  EXPECT_EQ(kernel(table, "Relu", forms("f32", "-", "f32")), "float32");
  EXPECT_EQ(kernel(table, "Conv", forms("u16", "s8=/c", "u16")), "");
}

TEST(Table, ZeroPointsThatNoRowTellsApart) {
  const Table table("MaxPool\tu8\t-\tu8\tint8\nAdd\tu8\tu8\tu8\tint8\n");
  EXPECT_EQ(kernel(table, "MaxPool", forms("u8=", "-", "u8")), "int8");
  EXPECT_EQ(kernel(table, "Add", forms("u8", "u8=", "u8")), "int8");
  EXPECT_EQ(kernel(table, "Add", forms("u8", "u8", "u8=")), "int8");
  EXPECT_EQ(kernel(table, "Add", forms("u8", "f32", "u8")), "int8");
  EXPECT_EQ(kernel(table, "Add", forms("u8=", "f32", "u8")), "int8");
}

TEST(Table, RowsOfWeightsAreNotOfFirstInputs) {
  const Table table("*\t*\ts8/t\t*\trefused\n");
  Signature both = forms("s8=/t", "-", "s8=");
  both.first.is_constant = true;
  EXPECT_EQ(kernel(table, "Gather", both), "");
}

TEST(Table, ConstantsOnTheLeftAndResultsOfAnotherWidth) {
  const Table table("Add\tu8\tu8/t\tu8\thtp\nConv\tu8\ts8=/c\tu16\tcpu\nConv\tu8\ts8=/c\tu8\thtp\n");
  Signature left = forms("u8/t", "u8", "u8");
  left.first.is_constant = true;
  EXPECT_EQ(kernel(table, "Add", left), "htp");
  EXPECT_EQ(kernel(table, "Conv", forms("u8", "s8=/c", "u16=")), "cpu");
  EXPECT_EQ(kernel(table, "Conv", forms("u8", "s8=/c", "u8=")), "htp");
}

TEST(Table, WhatUint8WeightsCostInOpenVino) {
  const auto* table = table_of("openvino");
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(kernel(*table, "Conv", forms("u8", "u8=/t", "u8")), "float32");
  EXPECT_EQ(kernel(*table, "Conv", forms("u8", "s8=/c", "u8")), "int8");
  EXPECT_EQ(kernel(*table, "MatMul", forms("u8", "u8", "f32")), "float32");
  const auto* better = table->nearest_on_integers("Conv", forms("u8", "u8=/c", "u8"));
  ASSERT_NE(better, nullptr);
  EXPECT_EQ(better->first, "u8");
  EXPECT_TRUE(better->second.starts_with("s8="));
}

TEST(Table, WhatChoosesByValuesIsLeftToTheCpu) {
  for (const auto* target : {"amd-npu:a8w8", "amd-npu:a16w8", "qnn"}) {
    for (const auto* first : {"s8=", "s16=", "bf", "f32"}) {
      const auto found = kernel(*table_of(target), "NonMaxSuppression", forms(first, "f32", "-"));
      EXPECT_TRUE(found.empty() || found == "cpu") << target << ' ' << first << ' ' << found;
    }
  }
}

TEST(Table, EveryTargetButTheFloatOfAmdHasOne) {
  for (const auto& target : config::targets())
    EXPECT_NE(table_of(target.is_ort_cpu ? "ort-cpu" : target.name), nullptr) << target.name;
}

// What OpenVINO's kernels take along, and what attributes keep from integers.

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

// Which products of few rows OpenVINO joins, and which of these it computes wrongly.

constexpr int kFirst = 3, kSecond = 7;  // positions of the products

// x, behind a pair of uint8, times w1, `between`, a pair, times w2. The zero point of the first pair is 7 or 0.
struct Rows {
  onnx::Model model;
  graph::ValueTypes types;

  explicit Rows(std::int64_t rows, const std::string& zero = "z7", std::int64_t width = 4) {
    model.path = "test.onnx";
    model.set_opset("", 17);
    const std::vector<float> scale{0.5F}, weight(static_cast<std::size_t>(width * width), 1.0F);
    floats("s", {}, scale);
    floats("w", {width, width}, weight);
    floats("bias", {width}, std::vector<float>(static_cast<std::size_t>(width), 2.0F));
    floats("no_bias", {width}, std::vector<float>(static_cast<std::size_t>(width), 0.0F));
    for (const auto& [name, number] : {std::pair{"z7", 7}, std::pair{"z0", 0}}) {
      const std::vector<std::uint8_t> value{static_cast<std::uint8_t>(number)};
      model.graph.initializers.push_back(
          onnx::make_tensor<std::uint8_t>(name, onnx::DataType::uint8, {}, std::span<const std::uint8_t>(value)));
    }
    model.graph.inputs.push_back(onnx::make_value_info("x", onnx::DataType::float32, {}));
    model.graph.outputs.push_back({"y", onnx::DataType::float32, {}, {}});
    node("Relu", {"x"}, "r").pair("r", "d", zero);
    for (const char* value : {"p", "y"})
      types[value] = {onnx::DataType::float32, std::vector<onnx::Dim>{{rows, ""}, {width, ""}}};
  }
  void floats(const char* name, std::vector<std::int64_t> dims, const std::vector<float>& values) {
    model.graph.initializers.push_back(
        onnx::make_tensor<float>(name, onnx::DataType::float32, std::move(dims), std::span<const float>(values)));
  }
  Rows& node(const std::string& op, Names in, const std::string& out) {
    model.graph.nodes.emplace_back(op, out, std::move(in), Names{out});
    return *this;
  }
  Rows& pair(const std::string& in, const std::string& out, const std::string& zero) {
    return node("QuantizeLinear", {in, "s", zero}, out + "_q").node("DequantizeLinear", {out + "_q", "s", zero}, out);
  }
  /// Both products, with an operator between them.
  Rows& products(const std::string& between = "Relu", const std::string& bias = "") {
    Names first{"d", "w"};
    if (!bias.empty()) first.push_back(bias);
    node("Gemm", first, "p").node(between, {"p"}, "a").pair("a", "b", "z0");
    return node("Gemm", {"b", "w"}, "y");
  }
  std::unordered_map<int, ChainOutcome> joined() const {
    return outcome_of_chained_products(model, graph::Index(model), types);
  }
};

TEST(JoinedProducts, OfMoreRowsOrWideWeightsStayApart) {
  EXPECT_EQ(Rows(8).products().joined().size(), 2U);
  EXPECT_EQ(Rows(-1).products().joined().size(), 2U);  // of as many rows as one likes
  EXPECT_TRUE(Rows(9).products().joined().empty());
  EXPECT_EQ(Rows(8, "z7", 256).products().joined().size(), 2U);
  EXPECT_TRUE(Rows(8, "z7", 257).products().joined().empty());
}

TEST(JoinedProducts, AreWrongWhereAZeroPointIsTakenAlong) {
  for (const int product : {kFirst, kSecond}) {
    EXPECT_EQ(Rows(1).products().joined().at(product), ChainOutcome::wrong);
    EXPECT_EQ(Rows(1).products("Relu", "no_bias").joined().at(product), ChainOutcome::wrong);
    // A bias, an activation that stays, or no zero point keep it from that; then the kernel is one of floats.
    EXPECT_EQ(Rows(1).products("Relu", "bias").joined().at(product), ChainOutcome::floats);
    EXPECT_EQ(Rows(1).products("Tanh").joined().at(product), ChainOutcome::floats);
    EXPECT_EQ(Rows(1, "z0").products().joined().at(product), ChainOutcome::floats);
  }
}

TEST(JoinedProducts, ArePartedByWhatHasAKernelOfItsOwn) {
  EXPECT_TRUE(Rows(1).products("LeakyRelu").joined().empty());
  EXPECT_TRUE(Rows(1).products("Softmax").joined().empty());
}

TEST(JoinedProducts, RunOnIntegersThatOthersReadToo) {
  Rows net(1, "z0");
  net.node("Sigmoid", {"d"}, "other");
  net.model.graph.outputs.push_back({"other", onnx::DataType::float32, {}, {}});
  const auto joined = net.products().joined();
  EXPECT_EQ(joined.at(kFirst + 1), ChainOutcome::integers);
}

// What becomes of int8 values in ONNX Runtime on x86 CPUs.

struct SignedNet {
  onnx::Model model;

  SignedNet() {
    model.path = "test.onnx";
    model.set_opset("", 17);
    const std::vector<float> scale{0.5F};
    const std::vector<std::int8_t> zero{0}, weight(8, 1);
    auto& constants = model.graph.initializers;
    constants.push_back(onnx::make_tensor<float>("s", onnx::DataType::float32, {}, std::span<const float>(scale)));
    constants.push_back(
        onnx::make_tensor<std::int8_t>("z", onnx::DataType::int8, {}, std::span<const std::int8_t>(zero)));
    constants.push_back(
        onnx::make_tensor<std::int8_t>("w", onnx::DataType::int8, {2, 4, 1, 1}, std::span<const std::int8_t>(weight)));
    for (const auto* name : {"x", "v"})
      model.graph.inputs.push_back(onnx::make_value_info(name, onnx::DataType::float32, {}));
  }
  SignedNet& node(const std::string& op, Names in, const std::string& out) {
    model.graph.nodes.emplace_back(op, out, std::move(in), Names{out}, std::vector<onnx::Attribute>{});
    return *this;
  }
  /// A pair of int8 behind `value`, as `value`_d.
  SignedNet& pair(const std::string& value) {
    node("QuantizeLinear", {value, "s", "z"}, value + "_q");
    return node("DequantizeLinear", {value + "_q", "s", "z"}, value + "_d");
  }
  bool mixed(const std::string& name) const {
    const graph::Index index(model);
    return mixes_signs(model, index, model.graph.nodes[static_cast<std::size_t>(index.producer(name))]);
  }
};

TEST(OrtRules, OperatorsHaveOneTypeOfValues) {
  SignedNet net;
  net.pair("x").pair("v").node("Mul", {"x_d", "v_d"}, "y").pair("y").node("Neg", {"y_d"}, "end");
  EXPECT_FALSE(net.mixed("y"));
  net.node("Abs", {"x_d"}, "other");
  EXPECT_TRUE(net.mixed("y"));
  EXPECT_FALSE(net.mixed("other")) << "its result is not quantized";
}

TEST(OrtRules, AShapeReadsNoValues) {
  SignedNet net;
  net.pair("x").node("Sigmoid", {"x_d"}, "y").pair("y").node("Neg", {"y_d"}, "end").node("Shape", {"x_d"}, "shape");
  EXPECT_FALSE(net.mixed("y"));
}

TEST(OrtRules, ProductsWantUint8) {
  SignedNet net;
  net.pair("x").node("DequantizeLinear", {"w", "s", "z"}, "w_d").node("Conv", {"x_d", "w_d"}, "y").pair("y");
  net.node("Neg", {"y_d"}, "a").node("Abs", {"y_d"}, "b").node("Exp", {"x_d"}, "c");
  EXPECT_TRUE(net.mixed("y")) << "both stay int8";
}

// What the HTP leaves to the CPU for its bias.

std::string why(const std::string& bias, const std::string& scale) {
  onnx::Model model;
  model.path = "test.onnx";
  const std::vector<float> floats{0.5F};
  const std::vector<std::int32_t> integers{3};
  model.graph.initializers.push_back(
      onnx::make_tensor<float>("b", onnx::DataType::float32, {1}, std::span<const float>(floats)));
  model.graph.initializers.push_back(
      onnx::make_tensor<std::int32_t>("i", onnx::DataType::int32, {1}, std::span<const std::int32_t>(integers)));
  for (const auto* name : {"x", "w"})
    model.graph.inputs.push_back(onnx::make_value_info(name, onnx::DataType::float32, {}));
  model.graph.nodes.emplace_back("DequantizeLinear", "d", Names{"i", "b"}, Names{"id"});
  model.graph.nodes.emplace_back("LayerNormalization", "n", Names{"x", "w", bias}, Names{"y"});
  const graph::Index index(model);
  return std::string(left_to_cpu_despite_table(model.graph.nodes[1], model, index, {{"u8"}, {scale, true}, {"u8"}}));
}

TEST(QnnRules, LayerNormalizationWithABiasOfInt32WantsOtherScales) {
  EXPECT_NE(why("id", "s8=/t"), "");
  EXPECT_NE(why("id", "f32"), "");
  EXPECT_EQ(why("id", "u8/t"), "");
  EXPECT_EQ(why("id", "s16=/t"), "");
  EXPECT_EQ(why("b", "s8=/t"), "");
}

}  // namespace
}  // namespace detent::checking
