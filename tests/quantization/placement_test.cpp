#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "calibration/support.h"
#include "detent/error.h"
#include "onnx/tensor.h"
#include "quantization/assignment.h"
#include "quantization/placement/placement.h"
#include "quantization/placement/selection.h"
#include "quantization/placement/value_kinds.h"
#include "quantization/support.h"
#include "quantization/weights.h"
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

using Dims = std::vector<std::int64_t>;

// What no kernel would take: mostly small values, and here and there one that is much larger.
onnx::Tensor weights_with_outliers(const Dims& dims, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::size_t size = 1;
  for (const auto d : dims) size *= static_cast<std::size_t>(d);
  std::vector<float> values(size);
  for (auto& v : values) v = normal(random) * (random() % 7 == 0 ? 5.0F : 1.0F);
  return onnx::make_tensor<float>("w", onnx::DataType::float32, dims, values);
}

std::vector<std::int8_t> integers_of(const onnx::Tensor& weight, const Granularity& granularity,
                                     const std::vector<float>& scales) {
  std::vector<ScaleZeroPoint> params;
  for (const float scale : scales) params.push_back({scale, 0});
  std::vector<std::int8_t> integers;
  quantized_weight(weight, "q", {{QuantType::int8, true}, granularity}, params).data.write_to([&](auto bytes) {
    for (const auto b : bytes) integers.push_back(static_cast<std::int8_t>(b));
  });
  return integers;
}

struct Case {
  onnx::Node node;
  Dims dims;
  Granularity granularity;
};

onnx::Node node(const char* type, std::vector<onnx::Attribute> attributes = {}) {
  return {type, "n", {"x", "w"}, {"y"}, std::move(attributes)};
}

std::vector<Case> cases() {
  const auto grouped = node("Conv", {onnx::Attribute::of_int("group", 2)});
  const auto transposed = node("Gemm", {onnx::Attribute::of_int("transB", 1)});
  return {{node("Conv"), {6, 3, 3, 3}, Granularity::along(0)}, {node("Conv"), {6, 8, 3, 3}, Granularity::along(0)},
          {node("Conv"), {5, 7, 1, 1}, Granularity::along(0)}, {node("Conv"), {4, 1, 5}, Granularity::along(0)},
          {grouped, {6, 3, 2, 3, 2}, Granularity::along(0)},   {node("MatMul"), {17, 6}, Granularity::along(1)},
          {node("MatMul"), {8, 1}, Granularity::along(1)},     {node("MatMul"), {3, 5, 4}, Granularity::tensor()},
          {node("MatMul"), {9}, Granularity::tensor()},        {node("Gemm"), {12, 7}, Granularity::along(1)},
          {transposed, {7, 13}, Granularity::along(0)},        {node("Conv"), {6, 3, 3, 3}, Granularity::tensor()}};
}

// The order of a kernel, spelled out: where the weight is that a sum takes as its k-th.
std::size_t position_of(const Case& c, std::size_t sum, std::size_t k) {
  const auto dim = [&](std::size_t d) { return static_cast<std::size_t>(c.dims[d]); };
  if (c.node.is("Conv")) {
    std::size_t positions = 1;
    for (std::size_t d = 2; d < c.dims.size(); ++d) positions *= dim(d);
    return sum * dim(1) * positions + k % dim(1) * positions + k / dim(1);
  }
  if (c.node.is("Gemm") && c.node.int_or("transB", 0) != 0) return sum * dim(1) + k;
  if (c.dims.size() == 1) return k;
  const std::size_t rank = c.dims.size(), n = dim(rank - 1);
  return sum / n * dim(rank - 2) * n + k * n + sum % n;
}

// The largest sum of one sign in the pairs of each slice.
std::vector<int> largest_of_pairs(const Case& c, const std::vector<std::int8_t>& integers) {
  const std::size_t fan_in = summation_of(c.node, c.dims)->fan_in();
  std::vector<int> largest(slice_count(c.granularity, c.dims));
  for (std::size_t sum = 0; sum < integers.size() / fan_in; ++sum) {
    for (std::size_t k = 0; k + 1 < fan_in; k += 2) {
      const int a = integers[position_of(c, sum, k)], b = integers[position_of(c, sum, k + 1)];
      int& most = largest[c.granularity.is_tensor() ? 0 : sum % largest.size()];
      most = std::max({most, std::max(a, 0) + std::max(b, 0), -std::min(a, 0) - std::min(b, 0)});
    }
  }
  return largest;
}

TEST(Pairs, ScalesAreTheSmallestThatKeepEachPair) {
  unsigned seed = 1;
  for (const auto& c : cases()) {
    SCOPED_TRACE(c.node.op_type() + " of " + std::to_string(c.dims.size()) + " dimensions");
    const auto weight = weights_with_outliers(c.dims, seed++);
    const auto scales = pair_scales(weight, c.granularity, summation_of(c.node, c.dims).value());
    for (const int most : largest_of_pairs(c, integers_of(weight, c.granularity, scales))) EXPECT_LE(most, kMostOfPair);
    auto smaller = scales;
    for (float& scale : smaller) scale = std::nextafter(scale, 0.0F);
    const auto below = largest_of_pairs(c, integers_of(weight, c.granularity, smaller));
    for (std::size_t s = 0; s < scales.size(); ++s) {
      if (scales[s] == 0) continue;  // no two weights of one sign meet
      EXPECT_GT(below[s], kMostOfPair);
    }
  }
}

TEST(Pairs, OnlyWeightsOfOneSignAddUp) {
  const std::vector<float> values{1, -1, 1, -1};
  const auto weight = onnx::make_tensor<float>("w", onnx::DataType::float32, {1, 4, 1, 1}, values);
  const auto scales = pair_scales(weight, Granularity::along(0), *summation_of(node("Conv"), weight.dims));
  EXPECT_EQ(scales, std::vector<float>{0});
}

TEST(Pairs, WithAnOddNumberOfChannelsTheyReachOverPositions) {
  const auto pairs = summation_of(node("Conv"), {1, 3, 1, 2})->pairs();  // memory: c0p0 c0p1 c1p0 c1p1 c2p0 c2p1
  EXPECT_EQ(pairs, (std::vector<std::pair<std::size_t, std::size_t>>{{0, 2}, {4, 1}, {3, 5}}));
}

TEST(Pairs, DepthwiseAndTransposedConvolutionsHaveNone) {
  const auto depthwise = node("Conv", {onnx::Attribute::of_int("group", 8)});
  EXPECT_FALSE(summation_of(depthwise, {8, 1, 3, 3}));
  EXPECT_TRUE(summation_of(depthwise, {16, 1, 3, 3}));  // two outputs of each channel: a matrix product
  EXPECT_FALSE(summation_of(node("ConvTranspose"), {8, 8, 3, 3}));
  EXPECT_FALSE(summation_of(node("LayerNormalization"), {8}));
}

using testing::find;

FloatParts chains(const Builder& b) {
  return integer_chains(b.model, graph::Index(b.model), select_nodes(b.model, {}));
}

// Names of the nodes that compute on integers.
std::set<std::string> kept(const Builder& b) {
  const auto floats = chains(b);
  std::set<std::string> names;
  for (std::size_t n = 0; n < floats.nodes.size(); ++n) {
    if (!floats.nodes[n]) names.insert(b.model.graph.nodes[n].name());
  }
  return names;
}

Builder& conv(Builder& b, const std::string& in, const std::string& out) {
  return b.constant("w_" + out, {4, 4, 1, 1}).node("Conv", {in, "w_" + out}, {out});
}

TEST(IntegerChains, AResidualBlockStaysInIntegers) {
  Builder b;
  b.input("x");
  conv(b, "x", "a");
  b.node("Relu", {"a"}, {"r"});
  conv(b, "r", "c");
  b.node("Add", {"c", "r"}, {"s"}).node("MaxPool", {"s"}, {"m"});
  conv(b, "m", "y").output("y");
  EXPECT_EQ(kept(b), (std::set<std::string>{"n_a", "n_r", "n_c", "n_s", "n_m", "n_y"}));
}

TEST(IntegerChains, GatesSoftmaxAndArithmeticWithConstantsStayInFloat) {
  Builder b;
  b.input("x").constant("k", {1});
  conv(b, "x", "a");
  b.node("Sigmoid", {"a"}, {"g"}).node("Mul", {"a", "g"}, {"silu"});
  conv(b, "silu", "c");
  b.node("Add", {"c", "k"}, {"shifted"});
  conv(b, "shifted", "d");
  b.node("Softmax", {"d"}, {"y"}).output("y");
  EXPECT_EQ(kept(b), (std::set<std::string>{"n_a", "n_c", "n_d"}));
}

Builder& silu(Builder& b, const std::string& in, const std::string& out) {
  return b.node("Sigmoid", {in}, {"gate_" + out}).node("Mul", {in, "gate_" + out}, {out});
}

TEST(Gates, AreFoundBehindConvolutions) {
  Builder b;
  b.input("x").constant("k", {1}).constant("rows", {4, 1, 1}).constant("w", {4, 4});
  silu(b, "x", "of_input");
  conv(b, "of_input", "a");
  silu(b, "a", "s").node("Add", {"k", "s"}, {"shifted"});
  conv(b, "shifted", "c").node("HardSigmoid", {"c"}, {"h"}).node("Mul", {"h", "c"}, {"hard"});
  b.node("Add", {"hard", "rows"}, {"other"});
  conv(b, "other", "d").node("Sigmoid", {"d"}, {"seen"}).node("Mul", {"d", "seen"}, {"e"}).output("seen");
  b.node("MatMul", {"e", "w"}, {"m"});
  silu(b, "m", "y").output("y");
  const graph::Index index(b.model);
  EXPECT_EQ(all_gates(b.model, index), (GateNames{"gate_s", "h"}));
  const auto gates = find_gated_activations(b.model, index);
  const auto& nodes = b.model.graph.nodes;
  ASSERT_EQ(gates.size(), 2U);
  EXPECT_EQ(nodes[static_cast<std::size_t>(gates[0].sum)].name(), "n_shifted");
  EXPECT_EQ(nodes[static_cast<std::size_t>(gates[1].product)].name(), "n_hard");
  EXPECT_EQ(gates[1].sum, graph::kNone);
}

TEST(IntegerChains, GatesThatAreNamedCarryIntegers) {
  Builder b;
  b.input("x").constant("k", {1});
  conv(b, "x", "a");
  silu(b, "a", "s").node("Add", {"s", "k"}, {"shifted"});
  conv(b, "shifted", "c");
  silu(b, "c", "t");
  conv(b, "t", "d");
  silu(b, "d", "y").output("y");  // which no product reads
  const auto floats = integer_chains(b.model, graph::Index(b.model), select_nodes(b.model, {}), {"gate_s", "gate_y"});
  std::set<std::string> in_float;
  for (std::size_t n = 0; n < floats.nodes.size(); ++n) {
    if (floats.nodes[n]) in_float.insert(b.model.graph.nodes[n].name());
  }
  EXPECT_EQ(in_float, (std::set<std::string>{"n_gate_t", "n_t", "n_gate_y", "n_y"}));
  const auto placement = place(b.model, b.types, preset_config("balanced"), floats);
  EXPECT_EQ(placement.fixed_ranges.at("gate_s").max, 1);
  EXPECT_NE(find(placement, "k"), nullptr);
}

TEST(IntegerChains, WhatNoProductReadsStaysInFloatButForTheActivationOfAConvolution) {
  Builder b;
  b.input("x");
  conv(b, "x", "a");
  b.node("Relu", {"a"}, {"r"}).node("Concat", {"r", "a"}, {"both"}).node("Sigmoid", {"both"}, {"y"}).output("y");
  EXPECT_EQ(kept(b), (std::set<std::string>{"n_a"})) << "the Relu is not the only reader";
  Builder alone;
  alone.input("x");
  conv(alone, "x", "a");
  alone.node("Relu", {"a"}, {"r"}).node("Sigmoid", {"r"}, {"y"}).output("y");
  EXPECT_EQ(kept(alone), (std::set<std::string>{"n_a", "n_r"}));
}

TEST(IntegerChains, ResultsOfMatrixProductsAreIntegersOnlyForProducts) {
  Builder b;
  b.input("x").constant("w", {4, 4}).constant("v", {4, 4}).constant("u", {4, 4});
  b.node("MatMul", {"x", "w"}, {"a"}).node("Transpose", {"a"}, {"t"}).node("MatMul", {"t", "v"}, {"c"});
  b.node("Erf", {"c"}, {"e"}).node("MatMul", {"e", "u"}, {"y"}).output("y");
  const auto floats = chains(b);
  EXPECT_EQ(floats.values, (std::set<std::string>{"c", "y"}));
  const auto placement = place(b.model, b.types, {}, floats);
  EXPECT_NE(find(placement, "a"), nullptr);
  EXPECT_NE(find(placement, "t"), nullptr);
  EXPECT_EQ(find(placement, "c"), nullptr);
  EXPECT_EQ(find(placement, "y"), nullptr);
}

TEST(IntegerChains, WhatAFloatNodeMadeIsReadAsItIsByFloatNodes) {
  Builder b;
  b.input("x").constant("w", {4, 4});
  b.node("Erf", {"x"}, {"e"}).node("MatMul", {"e", "w"}, {"m"}).node("Add", {"m", "e"}, {"y"}).output("y");
  const auto placement = place(b.model, b.types, {}, chains(b));
  ASSERT_NE(find(placement, "e"), nullptr);
  EXPECT_TRUE(find(placement, "e")->float_readers_unrounded);
  Assignment assignment{placement, {}, {}};
  for (const auto& mark : placement.marks)
    assignment.values[mark.value] = {QuantType::uint8, {}, {{1.0F, 128}}, mark.value, {0, 255}, {}};
  const auto model = emit_qdq({b.model}, assignment).model;
  for (const auto& node : model.graph.nodes) {
    if (node.op_type() == "Add") {
      EXPECT_EQ(node.inputs()[1], "e");
    }
    if (node.op_type() == "MatMul") {
      EXPECT_EQ(node.inputs()[0], "e_DequantizeLinear_Output");
    }
  }
}

TEST(IntegerChains, TablesAreKept) {
  Builder b;
  b.input("i").type("i", onnx::DataType::int64).constant("table", {10, 4}).constant("w", {4, 4});
  b.node("Gather", {"table", "i"}, {"rows"}).node("Erf", {"rows"}, {"e"}).node("MatMul", {"e", "w"}, {"y"}).output("y");
  EXPECT_EQ(kept(b), (std::set<std::string>{"n_rows", "n_y"}));
}

std::string source_of(const Builder& b, const std::string& value, const Names& added = {}) {
  const auto types = passthrough_types(b.model, config([&](auto& c) { c.passthrough_op_types = added; }));
  return statistics_source(b.model, graph::Index(b.model), b.types, types, value);
}

// What MatMul reads has gone through a few operators that move values.
Builder moved() {
  Builder b;
  b.input("x").integers("shape", {-1, 4}).constant("w", {4, 4});
  b.node("Reshape", {"x", "shape"}, {"r"}).node("Transpose", {"r"}, {"t"}).node("MatMul", {"t", "w"}, {"m"});
  return b.node("Relu", {"m"}, {"y"}).output("y");
}

TEST(Passthrough, FollowsOperatorsThatMoveEachValueToOnePlace) {
  for (const char* op : {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "DepthToSpace", "SpaceToDepth"}) {
    Builder b;
    b.input("x").node("Relu", {"x"}, {"a"}).node(op, {"a"}, {"b"}).node("Reshape", {"b"}, {"c"});
    EXPECT_EQ(source_of(b, "b"), "a") << op;
    EXPECT_EQ(source_of(b, "c"), "a") << op;
    EXPECT_EQ(source_of(b, "a"), "a") << op;
    EXPECT_EQ(source_of(b, "x"), "x") << op;
  }
}

TEST(Passthrough, StopsAtWhatChangesOrDropsValues) {
  for (const char* op : {"Relu", "MaxPool", "AveragePool", "Gather", "Slice", "Concat", "Expand", "Resize", "Pad"}) {
    Builder b;
    b.input("x").node("Neg", {"x"}, {"a"}).node(op, {"a"}, {"b"});
    EXPECT_EQ(source_of(b, "b"), "b") << op;
    EXPECT_EQ(source_of(b, "b", {op}), "a") << op << " when asked for";
  }
}

TEST(Passthrough, StopsAtConstantsAndOtherTypes) {
  Builder b;
  b.input("x").constant("k", {2, 2}).node("Reshape", {"k", "x"}, {"a"});
  b.input("i").type("i", onnx::DataType::int64).node("Transpose", {"i"}, {"t"});
  EXPECT_EQ(source_of(b, "a"), "a");
  EXPECT_EQ(source_of(b, "t"), "t");
  Builder other;
  other.input("x");
  other.model.graph.nodes.emplace_back("Reshape", "n", Names{"x"}, Names{"y"}, std::vector<onnx::Attribute>(),
                                       "my.domain");
  EXPECT_EQ(source_of(other, "y"), "y");
}

TEST(Passthrough, UnknownTypesAreRefused) {
  try {
    source_of(moved(), "t", {"MaxPoool"});
    ADD_FAILURE() << "a misspelt type was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("--set passthrough-op-types: 'test.onnx' has no node of type 'MaxPoool'"),
              std::string::npos)
        << e.what();
  }
}

TEST(Passthrough, OnlySourcesAreObserved) {
  const auto placement = moved().place();
  EXPECT_EQ(kind(placement, "t"), "activation");
  EXPECT_EQ(placement.source_of("t"), "x");
  EXPECT_EQ(placement.source_of("y"), "y");
  EXPECT_EQ(placement.to_observe(), (Names{"x", "y"}));
  // Two that have one source are observed once.
  Builder twice = moved();
  twice.node("Squeeze", {"x"}, {"z"}).node("MatMul", {"z", "w"}, {"n"}).output("n");
  EXPECT_EQ(twice.place().to_observe(), (Names{"x", "y", "n"}));
  const auto relu = moved().place(config([](auto& c) { c.passthrough_op_types = {"Relu", "MatMul"}; }));
  EXPECT_EQ(relu.to_observe(), (Names{"x"}));
}

TEST(Passthrough, RangesAreThoseOfTheSource) {
  const auto placement = moved().place();
  calibration::Statistics statistics;
  statistics.tensors["x"] = calibration::test::summary_of({-3, 1, 2});
  statistics.tensors["y"] = calibration::test::summary_of({0, 7});
  const auto ranges = find_ranges(placement, statistics, {}, {});
  EXPECT_EQ(ranges.at("t").range.min, -3.0F);
  EXPECT_EQ(ranges.at("t").range.max, 2.0F);
  EXPECT_FALSE(ranges.contains("x"));
  RangeOptions given;
  given.overrides = {{"t", {}, {{-1.0F, 1.0F}}}};
  EXPECT_EQ(find_ranges(placement, statistics, {}, given).at("t").range.max, 1.0F) << "the user's word is about t";
}

}  // namespace
}  // namespace detent::quantization
