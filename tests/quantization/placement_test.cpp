#include "quantization/placement/placement.h"

#include <gtest/gtest.h>

#include <limits>

#include "detent/error.h"
#include "support.h"

namespace detent::quantization {
namespace {

using onnx::Attribute;
using testing::Builder;
using testing::config;
using testing::kind;
using Names = std::vector<std::string>;

// x -> Conv -> c: something quantized for the operator under test to follow.
Builder after_conv(std::int64_t opset = 17) {
  Builder b(opset);
  b.input("x").constant("w", {4, 3, 1, 1}).node("Conv", {"x", "w"}, {"c"});
  return b;
}

TEST(Placement, ConvMarksInputOutputWeightAndBias) {
  Builder b;
  b.input("x").constant("w", {4, 3, 3, 3}).constant("b", {4}).node("Conv", {"x", "w", "b"}, {"y"}).output("y");
  const auto p = b.place();
  Names order;
  for (const auto& mark : p.marks) order.push_back(mark.value);
  EXPECT_EQ(order, (Names{"x", "y", "w"}));
  EXPECT_EQ(kind(p, "x"), "activation");
  EXPECT_EQ(kind(p, "y"), "activation");
  EXPECT_EQ(kind(p, "w"), "weight@0");
  ASSERT_EQ(p.biases.size(), 1u);
  EXPECT_EQ(p.biases[0].bias, "b");
  EXPECT_EQ(p.biases[0].input, "x");
  EXPECT_EQ(p.biases[0].weight, "w");
  EXPECT_EQ(p.biases[0].beta, 1.0F);
  EXPECT_EQ(p.to_observe(), (Names{"x", "y"}));
  EXPECT_EQ(kind(b.place(config([](auto& c) { c.per_channel = false; })), "w"), "weight");
}

TEST(Placement, ConvTransposeHasItsChannelsOnAxisOne) {
  const auto placed = [](std::int64_t group, bool with_bias) {
    Builder b;
    b.input("x").constant("w", {4, 2, 3, 3}).constant("b", {2 * group});
    b.node("ConvTranspose", with_bias ? Names{"x", "w", "b"} : Names{"x", "w"}, {"y"},
           {Attribute::of_int("group", group)});
    return b.place();
  };
  EXPECT_EQ(kind(placed(1, true), "w"), "weight@1");
  EXPECT_EQ(kind(placed(2, false), "w"), "weight@1");
  EXPECT_EQ(kind(placed(2, true), "w"), "weight");
  EXPECT_EQ(placed(2, true).notes.size(), 1u);
}

TEST(Placement, GemmTakesItsAxisFromTransBAndItsFactorFromBeta) {
  for (const std::int64_t transposed : {0, 1}) {
    Builder b;
    b.input("x").constant("w", {4, 3}).constant("b", {4});
    b.node("Gemm", {"x", "w", "b"}, {"y"},
           {Attribute::of_int("transB", transposed), Attribute::of_float("beta", 0.5F)});
    const auto p = b.place();
    EXPECT_EQ(kind(p, "w"), transposed == 1 ? "weight@0" : "weight@1");
    ASSERT_EQ(p.biases.size(), 1u);
    EXPECT_EQ(p.biases[0].beta, 0.5F);
  }
}

TEST(Placement, MatMulTellsConstantsFromActivations) {
  Builder b;
  b.input("x").constant("w", {3, 4}).constant("v", {4}).constant("l", {2, 3});
  b.node("MatMul", {"x", "w"}, {"y"})
      .node("MatMul", {"y", "v"}, {"z"})
      .node("MatMul", {"l", "x"}, {"u"})
      .node("MatMul", {"u", "x"}, {"t"});
  const auto p = b.place();
  EXPECT_EQ(kind(p, "w"), "weight@1");
  EXPECT_EQ(kind(p, "v"), "weight");  // no axis 1
  EXPECT_EQ(kind(p, "l"), "weight");  // its axis 1 is summed over, and each row is not what kernels take
  for (const char* value : {"x", "y", "z", "u", "t"}) EXPECT_EQ(kind(p, value), "activation") << value;
}

TEST(Placement, BatchedWeightsHaveOneScale) {
  Builder b;
  b.input("x").constant("w", {2, 3, 4}).node("MatMul", {"x", "w"}, {"y"});
  EXPECT_EQ(kind(b.place(), "w"), "weight");
}

TEST(Placement, AConstantOnBothSidesOfProductsHasOneScale) {
  for (const bool left_first : {false, true}) {
    Builder b;
    b.input("x").constant("w", {3, 3});
    b.node("MatMul", left_first ? Names{"w", "x"} : Names{"x", "w"}, {"y"});
    b.node("MatMul", left_first ? Names{"y", "w"} : Names{"w", "y"}, {"z"});
    EXPECT_EQ(kind(b.place(), "w"), "weight") << left_first;
  }
}

TEST(Placement, AConstantOnTheLeftOfAGemmHasTheTypeOfActivations) {
  for (const std::int64_t transposed : {0, 1}) {
    Builder b;
    b.input("x").constant("a", {3, 3}).node("Gemm", {"a", "x"}, {"y"}, {Attribute::of_int("transA", transposed)});
    EXPECT_EQ(kind(b.place(), "a"), "constant");
  }
}

TEST(Placement, NormalizationHasAWeightAndABias) {
  for (const char* op : {"InstanceNormalization", "LayerNormalization"}) {
    Builder b;
    b.input("x").constant("s", {3}).constant("b", {3}).node(op, {"x", "s", "b"}, {"y"});
    const auto p = b.place();
    EXPECT_EQ(kind(p, "s"), "weight");
    EXPECT_EQ(kind(p, "y"), "activation");
    EXPECT_EQ(p.biases.size(), 1u);
  }
}

TEST(Placement, BiasesThatCannotBeInt32AreNoted) {
  Builder b;
  b.input("x").input("b1").constant("w", {4, 3}).constant("b2", {1, 4}).constant("b3", {4});
  b.model.graph.initializers.back().type = onnx::DataType::float16;
  b.node("Gemm", {"x", "w", "b1"}, {"y1"})
      .node("Gemm", {"x", "w", "b2"}, {"y2"})
      .node("Gemm", {"x", "w", "b3"}, {"y3"});
  b.node("Gemm", {"x", "w", ""}, {"y4"}).node("Gemm", {"x", "w"}, {"y5"});
  const auto p = b.place();
  EXPECT_TRUE(p.biases.empty());
  ASSERT_EQ(p.notes.size(), 3u);
  EXPECT_NE(p.notes[0].find("'b1' stays in float: it is not constant"), std::string::npos) << p.notes[0];
  EXPECT_NE(p.notes[1].find("'b2' stays in float: it is not a vector"), std::string::npos) << p.notes[1];
  EXPECT_NE(p.notes[2].find("'b3' stays in float: it is not float32"), std::string::npos) << p.notes[2];
}

TEST(Placement, MovementSharesTheScaleOfAQuantizedInput) {
  for (const char* op : {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "AveragePool", "Slice", "TopK",
                         "MaxPool", "Resize", "Gather", "GatherElements"}) {
    Builder b = after_conv();
    b.integers("i", {0}).node(op, {"c", "i"}, {"y"}).node(op, {"y", "i"}, {"z"});
    b.input("free").node(op, {"free", "i"}, {"kept"});
    const auto p = b.place();
    EXPECT_EQ(kind(p, "y"), "shares c") << op;
    EXPECT_EQ(kind(p, "z"), "shares y") << op;
    EXPECT_EQ(kind(p, "kept"), "") << op;
    EXPECT_EQ(kind(p, "free"), "") << op;
    EXPECT_EQ(p.to_observe(), (Names{"x", "c"})) << op;
  }
}

TEST(Placement, MovementOfEightBitsNeedsTheOpsetThatHasIt) {
  const auto placed = [](const char* op, std::int64_t opset) {
    return kind(after_conv(opset).node(op, {"c"}, {"y"}).place(), "y");
  };
  EXPECT_EQ(placed("MaxPool", 11), "");
  EXPECT_EQ(placed("MaxPool", 12), "shares c");
  EXPECT_EQ(placed("Resize", 10), "");
  EXPECT_EQ(placed("Resize", 11), "shares c");
}

TEST(Placement, GatherQuantizesConstantData) {
  Builder b;
  b.input("x").integers("i", {0, 1}).constant("table", {10, 4}).node("Gather", {"table", "i"}, {"y"});
  const auto p = b.place();
  EXPECT_EQ(kind(p, "table"), "constant");
  EXPECT_EQ(kind(p, "y"), "shares table");
  EXPECT_EQ(kind(p, "i"), "");
}

TEST(Placement, SplitMarksItsInputAndSharesWithAllOutputs) {
  Builder b;
  b.input("x").node("Split", {"x"}, {"a", "b", "c"});
  const auto p = b.place();
  EXPECT_EQ(kind(p, "x"), "activation");
  for (const char* out : {"a", "b", "c"}) EXPECT_EQ(kind(p, out), "shares x");
}

TEST(Placement, WhereNeedsBothBranchesQuantized) {
  Builder b = after_conv();
  b.input("m").type("m", onnx::DataType::boolean).input("free");
  b.node("Where", {"m", "c", "x"}, {"both"}).node("Where", {"m", "c", "free"}, {"one"});
  const auto p = b.place();
  EXPECT_EQ(kind(p, "both"), "activation");
  EXPECT_EQ(kind(p, "one"), "");
}

TEST(Placement, PadSharesItsScaleWhenItsValuesStayInRange) {
  const auto placed = [](Names inputs, std::vector<Attribute> attributes, std::int64_t opset = 17) {
    Builder b = after_conv(opset);
    b.integers("p", {1, 1}).constant("zero", {}, {0.0F}).constant("five", {}, {5.0F}).input("dynamic");
    return kind(b.node("Pad", std::move(inputs), {"y"}, std::move(attributes)).place(), "y");
  };
  EXPECT_EQ(placed({"c", "p"}, {}), "shares c");
  EXPECT_EQ(placed({"c", "p", "zero"}, {}), "shares c");
  EXPECT_EQ(placed({"c", "p", "five"}, {}), "activation");
  EXPECT_EQ(placed({"c", "p", "dynamic"}, {}), "activation");
  EXPECT_EQ(placed({"c", "p", "five"}, {Attribute::of_string("mode", "reflect")}), "shares c");
  EXPECT_EQ(placed({"c", "p", "five"}, {Attribute::of_string("mode", "constant")}), "activation");
  EXPECT_EQ(placed({"c"}, {Attribute::of_float("value", 1.0F)}, 10), "activation");
  EXPECT_EQ(placed({"c"}, {}, 10), "shares c");
}

TEST(Placement, SoftmaxHasAFixedRange) {
  Builder b = after_conv();
  const auto p = b.node("Softmax", {"c"}, {"y"}).place();
  EXPECT_EQ(kind(p, "y"), "activation");
  EXPECT_EQ(p.fixed_ranges.at("y").min, 0.0F);
  EXPECT_EQ(p.fixed_ranges.at("y").max, 1.0F);
  EXPECT_EQ(p.to_observe(), (Names{"x", "c"}));
}

TEST(Placement, OperatorsWithoutARuleMarkAllFloats) {
  Builder b;
  b.input("x").input("n").type("n", onnx::DataType::int64).constant("k", {1});
  const auto p = b.node("Add", {"x", "k"}, {"y"}).node("Concat", {"y", "n"}, {"z"}).place();
  EXPECT_EQ(kind(p, "x"), "activation");
  EXPECT_EQ(kind(p, "k"), "constant");
  EXPECT_EQ(kind(p, "y"), "activation");
  EXPECT_EQ(kind(p, "n"), "");
}

TEST(Placement, ReluTakesThePairOfTheOperatorThatOnlyItReads) {
  Builder b = after_conv();
  const auto p = b.node("Relu", {"c"}, {"y"}).place();
  EXPECT_EQ(kind(p, "c"), "");
  EXPECT_EQ(kind(p, "y"), "activation");
  ASSERT_EQ(p.fused.size(), 1u);
  EXPECT_EQ(p.fused[0].input, "c");
  EXPECT_EQ(p.fused[0].output, "y");
  EXPECT_EQ(p.fused[0].low, 0.0F);
  EXPECT_EQ(p.fused[0].high, std::numeric_limits<float>::infinity());
  EXPECT_TRUE(p.fused[0].removable);
  EXPECT_FALSE(b.place(config([](auto& c) { c.activation_symmetric = true; })).fused[0].removable);
}

TEST(Placement, ReluWithOtherReadersKeepsBothPairs) {
  Builder two = after_conv();
  const auto shared = two.node("Relu", {"c"}, {"y"}).node("Sigmoid", {"c"}, {"s"}).place();
  EXPECT_TRUE(shared.fused.empty());
  EXPECT_EQ(kind(shared, "c"), "activation");
  EXPECT_EQ(kind(shared, "y"), "activation");
  const auto seen = after_conv().node("Relu", {"c"}, {"y"}).output("c").place();
  EXPECT_TRUE(seen.fused.empty());
  // A graph input that only Relu reads has no operator before it.
  Builder of_input = after_conv();
  of_input.input("i").node("Relu", {"i"}, {"y"});
  EXPECT_EQ(kind(of_input.place(), "y"), "");
}

TEST(Placement, ClipIsRemovableWithConstantBounds) {
  const auto fused = [](Names inputs, std::vector<Attribute> attributes, std::int64_t opset = 17) {
    Builder b = after_conv(opset);
    b.constant("zero", {}, {0.0F}).constant("six", {}, {6.0F}).input("dynamic");
    return b.node("Clip", std::move(inputs), {"y"}, std::move(attributes)).place().fused.at(0);
  };
  const float inf = std::numeric_limits<float>::infinity();
  const auto is = [](const FusedActivation& f, float low, float high, bool removable) {
    return f.removable == removable && (!removable || (f.low == low && f.high == high));
  };
  EXPECT_TRUE(is(fused({"c", "zero", "six"}, {}), 0, 6, true));
  EXPECT_TRUE(is(fused({"c", "", "six"}, {}), -inf, 6, true));
  EXPECT_TRUE(is(fused({"c"}, {}), -inf, inf, true));
  EXPECT_TRUE(is(fused({"c", "zero", "dynamic"}, {}), 0, 0, false));
  EXPECT_TRUE(is(fused({"c"}, {Attribute::of_float("min", -1), Attribute::of_float("max", 3)}, 10), -1, 3, true));
}

TEST(Placement, AWeightThatOthersReadHasOneScale) {
  Builder b;
  b.input("x").constant("w", {3, 3}).node("Add", {"x", "w"}, {"a"}).node("MatMul", {"a", "w"}, {"y"});
  EXPECT_EQ(kind(b.place(), "w"), "weight");
  EXPECT_EQ(kind(b.place(config([](auto& c) { c.per_channel = false; })), "w"), "weight");
}

TEST(Placement, AWeightThatIsReadAlongTwoAxesHasOneScale) {
  Builder b;
  b.input("x").constant("w", {3, 3}).node("MatMul", {"x", "w"}, {"a"}).node("MatMul", {"a", "w"}, {"y"});
  EXPECT_EQ(kind(b.place(), "w"), "weight@1");
  b.node("Gemm", {"y", "w"}, {"z"}, {onnx::Attribute::of_int("transB", 1)});
  EXPECT_EQ(kind(b.place(), "w"), "weight");
}

TEST(Placement, OnlySelectedNodesAreMarked) {
  Builder b = after_conv();
  b.node("Sigmoid", {"c"}, {"s"}).node("Add", {"s", "s"}, {"t"});
  const auto p = b.place(config([](auto& c) { c.exclude_nodes = {"n_t", "^n_c.*"}; }));
  EXPECT_EQ(kind(p, "x"), "");
  EXPECT_EQ(kind(p, "s"), "activation");
  EXPECT_EQ(kind(p, "t"), "");
  EXPECT_EQ(p.selected, (std::vector<bool>{false, true, false}));
}

TEST(Placement, RefusesModelsThatAreQuantizedOrHoldNothingToQuantize) {
  const auto refused = [](const Builder& b, const QuantConfig& options, const char* text) {
    try {
      b.place(options);
    } catch (const Error& error) {
      return std::string(error.what()).find(text) != std::string::npos;
    }
    return false;
  };
  Builder quantized = after_conv();
  quantized.constant("s", {}, {1.0F}).node("QuantizeLinear", {"c", "s"}, {"q"});
  EXPECT_TRUE(refused(quantized, {}, "is quantized already"));
  Builder integer;
  integer.input("x").type("x", onnx::DataType::int64).node("Add", {"x", "x"}, {"y"}).type("y", onnx::DataType::int64);
  EXPECT_TRUE(refused(integer, {}, "nothing to quantize"));
  EXPECT_TRUE(refused(after_conv(), config([](auto& c) { c.exclude_nodes = {"misspelt"}; }), "misspelt"));
  EXPECT_TRUE(refused(after_conv(), config([](auto& c) { c.op_types = {"Konv"}; }), "Konv"));
}

}  // namespace
}  // namespace detent::quantization
