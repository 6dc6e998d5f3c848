#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "graph/rewrites/rewrite.h"
#include "graph/rewrites/rotation.h"
#include "graph/support.h"
#include "onnx/functions.h"

namespace detent::graph::test {
namespace {

// The rewrites but for the opset upgrade, by structure; tests/exec compares what the models compute.

using onnx::test::attribute_head;
using onnx::test::elements;
using onnx::test::tensor_head;

onnx::TensorData keep(std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); }

Node constant(const std::string& out, const Attribute& attribute) { return {"Constant", "", {}, {out}, {attribute}}; }
Attribute tensor_attribute(const onnx::test::Msg& tensor) {
  return Attribute(onnx::Wire::own(attribute_head("value").sub(5, tensor).varint(20, 4).bytes));
}

TEST(LiftConstants, EveryDenseForm) {
  const auto strings = Attribute(onnx::Wire::own(attribute_head("value_strings").text(9, "a").varint(20, 8).bytes));
  const auto many =
      Attribute(onnx::Wire::own(attribute_head("value_floats").fixed32(7, 1).fixed32(7, 2).varint(20, 6).bytes));
  Model model =
      make_model({constant("t", tensor_attribute(tensor_head("other name", DataType::int8, {2}).packed(5, {-1, 2}))),
                  constant("f", Attribute::of_float("value_float", 1.5F)),
                  constant("i", Attribute::of_int("value_int", -3)),
                  constant("fs", many),
                  constant("is", Attribute::of_ints("value_ints", {4, 5})),
                  constant("s", strings),
                  constant("o", Attribute::of_int("value_int", 1)),
                  {"Any", "", {"x", "t", "f", "i", "fs", "is", "s"}, {"y"}}},
                 {}, 17, {value("x")}, {value("y"), value("o")});
  EXPECT_EQ(lift_constants(model).size(), 1U);
  EXPECT_EQ(op_types(model), (Names{"Constant", "Constant", "Any"})) << "strings and graph outputs stay";
  EXPECT_EQ(initializer_names(model), (Names{"t", "f", "i", "fs", "is"}));
  EXPECT_EQ(onnx::to_int64s(initializer(model, "t")), (std::vector<std::int64_t>{-1, 2}));
  EXPECT_TRUE(initializer(model, "f").dims.empty());
  EXPECT_EQ(elements<float>(initializer(model, "fs")), (Floats{1, 2}));
  EXPECT_EQ(elements<std::int64_t>(initializer(model, "is")), (std::vector<std::int64_t>{4, 5}));
  // What is written carries the node's name, not the tensor's.
  EXPECT_EQ(onnx::encode_model(model, nullptr).find("other name"), std::string::npos);
  EXPECT_TRUE(lift_constants(model).empty());
}

TEST(LiftConstants, DamagedTensorsAreErrors) {
  Model model = make_model({constant("t", tensor_attribute(tensor_head("", DataType::float32, {2}).fixed32(4, 1))),
                            {"Add", "", {"x", "t"}, {"y"}}});
  expect_error([&] { lift_constants(model); }, "Constant (output 't')");
}

TEST(DropInitializerInputs, MakesThemConstants) {
  Model model = make_model({{"Add", "", {"x", "w"}, {"y"}}}, {floats("w", {2}, {1, 2})}, 8, {value("x"), value("w")});
  model.set_ir_version(3);
  EXPECT_EQ(drop_initializer_inputs(model).size(), 1U);
  ASSERT_EQ(model.graph.inputs.size(), 1U);
  EXPECT_EQ(model.graph.inputs[0].name, "x");
  EXPECT_EQ(model.ir_version, 4) << "IR version 3 wants every initializer among the inputs";
  EXPECT_TRUE(drop_initializer_inputs(model).empty());
}

TEST(RemoveIdentities, RewiresChainsAndKeepsNames) {
  Model model = make_model({{"Identity", "", {"x"}, {"a"}},
                            {"Dropout", "", {"a"}, {"b", "mask"}},
                            {"Relu", "", {"b"}, {"c"}},
                            {"Identity", "keeps an output's name", {"c"}, {"y"}}});
  EXPECT_EQ(remove_identities(model).size(), 1U);
  EXPECT_EQ(op_types(model), (Names{"Relu", "Identity"}));
  EXPECT_EQ(model.graph.nodes[0].inputs(), (Names{"x"}));
}

TEST(RemoveIdentities, LeavesWhatDoesSomething) {
  const auto flag = [](const char* name, bool on) {
    return onnx::make_tensor<bool>(name, DataType::boolean, {}, std::array{on});
  };
  Model model =
      make_model({{"Dropout", "mask is read", {"x"}, {"a", "m"}},
                  {"Dropout", "trains", {"a", "", "yes"}, {"b"}},
                  {"Dropout", "may train", {"b", "", "maybe"}, {"c"}},
                  {"Dropout", "does not train", {"c", "", "no"}, {"d"}},
                  {"Identity", "captured", {"d"}, {"e"}},
                  {"Identity", "other domain", {"e"}, {"f"}, {}, "my.domain"},
                  if_node("maybe", "e", "f", "g"),
                  {"Where", "", {"m", "g", "f"}, {"y"}},
                  {"Identity", "", {}, {"nothing"}}},
                 {flag("yes", true), flag("no", false)}, 17, {value("x"), value("maybe", {}, DataType::boolean)});
  remove_identities(model);
  EXPECT_EQ(op_types(model),
            (Names{"Dropout", "Dropout", "Dropout", "Identity", "Identity", "If", "Where", "Identity"}));
  EXPECT_EQ(model.graph.nodes[3].inputs(), (Names{"c"}));
  Model odd = make_model({{"Identity", "", {"x"}, {}}, {"Relu", "", {"x"}, {"y"}}});
  EXPECT_NO_THROW(remove_identities(odd)) << "a node without outputs";
}

TEST(GiveRangesScalars, InPlaceOfListsOfOneNumber) {
  auto model = make_model({Node("Range", "", {"zero", "n", "step"}, {"y"})}, {ints("zero", {0})}, 17,
                          {value("n", {}, DataType::int64), value("step", {1}, DataType::int64)});
  const ValueType number{DataType::int64, std::vector<onnx::Dim>{}};
  const ValueTypes types{{"n", number}, {"step", {DataType::int64, std::vector<onnx::Dim>{{1, ""}}}}};
  EXPECT_EQ(give_ranges_scalars(model, types).size(), 1U);
  ASSERT_EQ(model.graph.nodes.size(), 3U);
  const auto& inputs = model.graph.nodes[2].inputs();
  EXPECT_EQ(inputs[1], "n");
  EXPECT_EQ(inputs[0], model.graph.nodes[0].outputs()[0]);
  EXPECT_EQ(inputs[2], model.graph.nodes[1].outputs()[0]);
  EXPECT_EQ(model.graph.nodes[0].op_type(), "Reshape");
  EXPECT_EQ(model.graph.nodes[1].op_type(), "Reshape");
  EXPECT_TRUE(give_ranges_scalars(model, {{"n", number}, {inputs[0], number}, {inputs[2], number}}).empty());
}

TEST(ConstantNodes, TakesWhatIsSmallOrDoesNotGrow) {
  const std::int64_t large = 1 << 20;  // floats: 4 MiB
  const auto type = [](const std::vector<std::int64_t>& dims) {
    std::vector<onnx::Dim> shape;
    for (const auto d : dims) shape.push_back({d, ""});
    return ValueType{DataType::float32, shape};
  };
  const Model model = make_model({{"Neg", "0 small", {"w"}, {"a"}},
                                  {"Abs", "1 after one", {"a"}, {"b"}},
                                  {"Expand", "2 grows", {"w", "s"}, {"c"}},
                                  {"Neg", "3 after what was left out", {"c"}, {"d"}},
                                  {"Neg", "4 as large as its input", {"big"}, {"e"}},
                                  {"NonZero", "5 shape not known", {"w"}, {"f"}},
                                  {"RandomNormal", "6 random", {}, {"g"}},
                                  {"DequantizeLinear", "7 already quantized", {"w", "w"}, {"h"}},
                                  {"Neg", "8 other domain", {"w"}, {"i"}, {}, "my.domain"},
                                  {"Neg", "9 makes an output", {"w"}, {"o"}},
                                  {"Neg", "10 reads the input", {"x"}, {"y"}},
                                  {"Concat", "11 grows less than four times", {"big", "big", "big"}, {"j"}}},
                                 {floats("w", {2}, {1, 2}), ints("s", {large}), floats("big", {large}, Floats(large))},
                                 17, {value("x")}, {value("y"), value("o")});
  const ValueTypes types{{"a", type({2})},     {"b", type({2})},     {"c", type({large})}, {"d", type({large})},
                         {"e", type({large})}, {"f", type({1, -1})}, {"g", type({2})},     {"h", type({2})},
                         {"i", type({2})},     {"o", type({2})},     {"y", type({2})},     {"j", type({3, large})}};
  EXPECT_EQ(constant_nodes(model, types), (std::vector<int>{0, 1, 4, 11}));
}

TEST(ConstantNodes, WhatGrowsIsComputedOnlyAsASmallWeight) {
  const auto chosen = [](std::int64_t width) {
    const ValueType type{DataType::float32, {{{width, ""}, {width, ""}}}};
    const Model model = make_model({{"Expand", "0 a weight", {"w", "s"}, {"a"}},
                                    {"Neg", "1 on the way to it", {"a"}, {"b"}},
                                    {"MatMul", "2", {"x", "b"}, {"c"}},
                                    {"Expand", "3 read by an Add", {"w", "s"}, {"d"}},
                                    {"Neg", "4 on the way to it", {"d"}, {"e"}},
                                    {"Add", "5", {"c", "e"}, {"y"}}},
                                   {floats("w", {1}, {1}), ints("s", {width, width})}, 17, {value("x", {width, width})},
                                   {value("y", {width, width})});
    ValueTypes types;
    for (const char* name : {"a", "b", "c", "d", "e", "y"}) types[name] = type;
    return constant_nodes(model, types);
  };
  EXPECT_EQ(chosen(64), (std::vector<int>{0, 1})) << "16 KiB";
  EXPECT_EQ(chosen(256), std::vector<int>()) << "256 KiB";
}

TEST(ConstantNodes, AreReplacedByTheirResults) {
  Model model = make_model({{"Neg", "", {"w"}, {"a"}}, {"Abs", "", {"a"}, {"b"}}, {"Add", "", {"x", "b"}, {"y"}}},
                           {floats("w", {2}, {1, 2})});
  EXPECT_TRUE(replace_by_constants(model, {}, {}).empty());
  replace_by_constants(model, {0, 1}, {floats("b", {2}, {1, 2})});
  EXPECT_EQ(op_types(model), (Names{"Add"}));
  EXPECT_EQ(initializer_names(model), (Names{"b"}));
  EXPECT_NO_THROW(Index{model});
}

// Weights, and a BatchNormalization of two channels with values that do not divide evenly.
std::vector<onnx::Tensor> bn_parts(const std::string& tag = "") {
  return {floats("scale" + tag, {2}, {1.1F, -0.7F}), floats("shift" + tag, {2}, {0.3F, 0.9F}),
          floats("mean" + tag, {2}, {0.17F, -2.3F}), floats("var" + tag, {2}, {0.77F, 1e-4F})};
}
Node batch_norm(const std::string& in, const std::string& out, const std::string& tag = "") {
  return {"BatchNormalization",
          "bn" + tag,
          {in, "scale" + tag, "shift" + tag, "mean" + tag, "var" + tag},
          {out},
          {Attribute::of_float("epsilon", 1e-3F)}};
}
Floats kernel(std::size_t count) {
  Floats w(count);
  for (std::size_t i = 0; i < count; ++i) w[i] = 0.1F * static_cast<float>(i) - 0.33F;
  return w;
}
template <class... More>
std::vector<onnx::Tensor> with_parts(More... more) {
  auto parts = bn_parts();
  (parts.push_back(more), ...);
  return parts;
}
// As conv_bn_fusion.cc of ONNX Runtime: var += eps; var = sqrt(var); scale /= var.
float factor(std::size_t c) {
  const Floats scale{1.1F, -0.7F}, var{0.77F, 1e-4F};
  volatile float v = var[c] + 1e-3F;
  v = std::sqrt(v);
  return scale[c] / v;
}

TEST(FoldBatchNorm, IntoConvWithoutBias) {
  Model model = make_model({{"Conv", "conv", {"x", "w"}, {"c"}}, batch_norm("c", "y")},
                           with_parts(floats("w", {2, 3, 1, 1}, kernel(6))));
  EXPECT_EQ(fold_batch_norm(model, keep).size(), 1U);
  EXPECT_EQ(op_types(model), (Names{"Conv"}));
  EXPECT_EQ(model.graph.nodes[0].inputs(), (Names{"x", "ConvBnFusion_W_w", "ConvBnFusion_BN_B_shift"}));
  EXPECT_EQ(model.graph.nodes[0].outputs(), (Names{"y"}));
  EXPECT_EQ(initializer_names(model), (Names{"ConvBnFusion_W_w", "ConvBnFusion_BN_B_shift"}))
      << "what nothing reads is gone";
  const Floats w = elements<float>(initializer(model, "ConvBnFusion_W_w"));
  for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(w[i], kernel(6)[i] * factor(i / 3));
  const Floats b = elements<float>(initializer(model, "ConvBnFusion_BN_B_shift"));
  for (std::size_t c = 0; c < 2; ++c) {
    volatile float product = Floats{0.17F, -2.3F}[c] * factor(c);
    EXPECT_EQ(b[c], (Floats{0.3F, 0.9F}[c] - product));
  }
}

TEST(FoldBatchNorm, IntoConvWithBias) {
  Model model = make_model({{"Conv", "conv", {"x", "w", "bias"}, {"c"}}, batch_norm("c", "y")},
                           with_parts(floats("w", {2, 3, 1, 1}, kernel(6)), floats("bias", {2}, {0.01F, 5.5F})));
  fold_batch_norm(model, keep);
  EXPECT_EQ(model.graph.nodes.at(0).inputs(), (Names{"x", "ConvBnFusion_W_w", "ConvBnFusion_B_bias"}));
  const Floats b = elements<float>(initializer(model, "ConvBnFusion_B_bias"));
  for (std::size_t c = 0; c < 2; ++c) {
    volatile float v = Floats{0.01F, 5.5F}[c] - Floats{0.17F, -2.3F}[c];
    v = v * factor(c);
    EXPECT_EQ(b[c], (v + Floats{0.3F, 0.9F}[c]));
  }
}

TEST(FoldBatchNorm, IntoConvTransposeAlongItsOtherAxis) {
  Model model = make_model({{"ConvTranspose", "conv", {"x", "w"}, {"c"}}, batch_norm("c", "y")},
                           with_parts(floats("w", {3, 2, 1, 2}, kernel(12))));
  fold_batch_norm(model, keep);
  EXPECT_EQ(op_types(model), (Names{"ConvTranspose"}));
  const Floats w = elements<float>(initializer(model, "ConvBnFusion_W_w"));
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(w[i], kernel(12)[i] * factor(i / 2 % 2)) << i;
}

TEST(FoldBatchNorm, SharedWeightsFoldOnce) {
  auto parts = with_parts(floats("w", {2, 2, 1, 1}, kernel(4)));
  for (auto& t : bn_parts("2")) parts.push_back(t);
  Model model = make_model({{"Conv", "1", {"x", "w"}, {"a"}},
                            batch_norm("a", "b"),
                            {"Conv", "2", {"b", "w"}, {"c"}},
                            batch_norm("c", "y", "2")},
                           parts);
  fold_batch_norm(model, keep);
  EXPECT_EQ(op_types(model), (Names{"Conv", "Conv", "BatchNormalization"}));
  EXPECT_EQ(model.graph.nodes[1].inputs()[1], "w");
  EXPECT_EQ(elements<float>(initializer(model, "w")), kernel(4)) << "the second still reads the weight as it was";
}

TEST(FoldBatchNorm, LeavesWhatItMayNot) {
  const auto stays = [](std::vector<Node> nodes, std::vector<onnx::Tensor> tensors, const std::string& why,
                        std::vector<onnx::ValueInfo> outputs = {value("y")},
                        std::vector<onnx::ValueInfo> inputs = {value("x")}) {
    Model model = make_model(std::move(nodes), std::move(tensors), 17, std::move(inputs), std::move(outputs));
    const auto before = onnx::encode_model(model, nullptr);
    EXPECT_TRUE(fold_batch_norm(model, keep).empty()) << why;
    EXPECT_EQ(onnx::encode_model(model, nullptr), before) << why;
  };
  const auto w = floats("w", {2, 3, 1, 1}, kernel(6));
  const Node conv("Conv", "conv", {"x", "w"}, {"c"});
  stays({conv, batch_norm("c", "y")}, with_parts(w), "the convolution's result is an output", {value("y"), value("c")});
  stays({conv, batch_norm("c", "z"), {"Add", "", {"z", "c"}, {"y"}}}, with_parts(w), "another node reads it");
  stays({conv, if_node("k", "c", "c", "z"), batch_norm("c", "y")}, with_parts(w), "a body reads it", {value("y")},
        {value("x"), value("k", {}, DataType::boolean)});
  stays({conv, batch_norm("c", "y")}, bn_parts(), "the weight is an input", {value("y")}, {value("x"), value("w")});
  stays({{"Conv", "conv", {"x", "w", "bias"}, {"c"}}, batch_norm("c", "y")}, with_parts(w), "the bias is an input",
        {value("y")}, {value("x"), value("bias")});
  stays({{"Relu", "", {"x"}, {"c"}}, batch_norm("c", "y")}, with_parts(w), "no convolution");
  stays({{"Conv", "conv", {"x", "w"}, {"c"}, {}, "my.domain"}, batch_norm("c", "y")}, with_parts(w),
        "another domain's");
  stays({conv, batch_norm("c", "y")}, with_parts(floats("w", {3, 2, 1, 1}, kernel(6))), "channels disagree");
  stays({{"Conv", "conv", {"x", "w", "bias"}, {"c"}}, batch_norm("c", "y")}, with_parts(w, floats("bias", {1}, {1})),
        "the bias is too short");
  stays({{"ConvTranspose", "conv", {"x", "w"}, {"c"}, {Attribute::of_int("group", 2)}}, batch_norm("c", "y")},
        with_parts(floats("w", {2, 2, 1, 1}, kernel(4))), "grouped");
  Node trains = batch_norm("c", "y");
  trains.set_attribute(Attribute::of_int("training_mode", 1));
  stays({conv, trains}, with_parts(w), "training");
  stays({{"Conv", "odd", {"x"}, {"c"}}, batch_norm("c", "y")}, bn_parts(), "a convolution without a weight");
}

TEST(FoldBatchNorm, KeepsItsNamesApart) {
  Model model = make_model(
      {{"Conv", "conv", {"x", "w"}, {"c"}}, batch_norm("c", "d"), {"Add", "", {"d", "ConvBnFusion_W_w"}, {"y"}}},
      with_parts(floats("w", {2, 3, 1, 1}, kernel(6)), floats("ConvBnFusion_W_w", {1}, {1})));
  fold_batch_norm(model, keep);
  EXPECT_EQ(model.graph.nodes[0].inputs()[1], "ConvBnFusion_W_w_1");
}

Model scalable(std::vector<Node> readers, std::vector<onnx::ValueInfo> outputs) {
  std::vector<Node> nodes{{"Conv", "made", {"x", "w", "b"}, {"c"}}, {"Relu", "r", {"c"}, {"v"}}};
  for (auto& node : readers) nodes.push_back(std::move(node));
  return make_model(std::move(nodes),
                    {floats("w", {2, 1, 1, 1}, {8, 3}), floats("b", {2}, {4, 5}), floats("u", {1, 2, 1, 1}, {1, 1})},
                    17, {value("x", {1, 1, 2, 2})}, std::move(outputs));
}

ChannelScaling scaling_of_v(std::vector<ChannelScaling::Reader> readers) {
  ChannelScaling scaling;
  scaling.value = "v";
  scaling.last_axis = false;
  scaling.factors = {4, 0.5F};
  scaling.readers = std::move(readers);
  scaling.maker = ChannelScaling::Maker{"w", "b"};
  return scaling;
}

TEST(ScaleChannels, ByTheirMakerForTheNextConvolution) {
  Model model = scalable({{"Conv", "next", {"v", "u"}, {"y"}}}, {value("y")});
  ValueTypes types;
  const auto names = scale_channels(model, types, {scaling_of_v({{2, "u", 1}})}, keep);
  EXPECT_EQ(names, (Names{"v_equalized"}));
  EXPECT_EQ(op_types(model), (Names{"Conv", "Relu", "Conv"})) << "nobody else reads it";
  EXPECT_EQ(elements<float>(initializer(model, "w")), (Floats{2, 6}));
  EXPECT_EQ(elements<float>(initializer(model, "b")), (Floats{1, 10}));
  EXPECT_EQ(elements<float>(initializer(model, "u")), (Floats{4, 0.5F}));
  EXPECT_EQ(model.graph.nodes[1].outputs()[0], "v_equalized");
  EXPECT_EQ(model.graph.nodes[2].inputs()[0], "v_equalized");
}

TEST(ScaleChannels, ByTheGainOfANormalization) {
  const std::vector<Node> gains{{"Mul", "gain", {"x", "g"}, {"v"}},
                                {"Mul", "gain", {"g", "x"}, {"v"}},
                                {"SimplifiedLayerNormalization", "norm", {"x", "g"}, {"v"}}};
  for (const auto& gain : gains) {
    Model model =
        make_model({gain, {"MatMul", "next", {"v", "u"}, {"y"}}},
                   {floats("g", {2}, {8, 3}), floats("u", {2, 1}, {1, 1})}, 17, {value("x", {1, 2})}, {value("y")});
    ChannelScaling scaling;
    scaling.value = "v";
    scaling.factors = {4, 0.5F};
    scaling.readers = {{1, "u", 0}};
    ValueTypes types;
    scale_channels(model, types, {scaling}, keep);
    EXPECT_EQ(model.graph.nodes.size(), 2U);
    EXPECT_EQ(elements<float>(initializer(model, "g")), (Floats{2, 6}));
    EXPECT_EQ(elements<float>(initializer(model, "u")), (Floats{4, 0.5F}));
  }
}

TEST(ScaleChannels, OthersGetTheValueUnderItsName) {
  Model model = scalable({{"Tanh", "t", {"v"}, {"y"}}}, {value("y"), value("v")});
  ValueTypes types;
  scale_channels(model, types, {scaling_of_v({})}, keep);
  EXPECT_EQ(op_types(model), (Names{"Conv", "Relu", "Mul", "Tanh"}));
  const auto& mul = model.graph.nodes[2];
  EXPECT_EQ(mul.inputs()[0], "v_equalized");
  EXPECT_EQ(mul.outputs()[0], "v");
  EXPECT_EQ(elements<float>(initializer(model, mul.inputs()[1])), (Floats{4, 0.5F}));
  EXPECT_EQ(initializer(model, mul.inputs()[1]).dims, (std::vector<std::int64_t>{2, 1, 1}));
  EXPECT_EQ(model.graph.nodes[3].inputs()[0], "v");
}

// How names and what goes with them grow where bodies and functions are unfolded: with the depth, never by doubling.

using onnx::test::Msg;

std::size_t longest_name(const Model& model) {
  std::size_t longest = 0;
  for (const auto& node : model.graph.nodes) {
    longest = std::max(longest, node.name().size());
    for (const auto& name : node.outputs()) longest = std::max(longest, name.size());
  }
  return longest;
}

// Each reads what is around it and has the names of the one around.
Node nested(const std::string& op_type, const std::string& attribute, int depth, const std::string& name) {
  Node inner("Neg", name, {"x"}, {"y"});
  for (int i = 0; i < depth; ++i) inner = Node(op_type, name, {"x"}, {"y"}, {body(attribute, {inner}, {value("y")})});
  return inner;
}

// Functions that call the one before so many times, each with the same names.
Model calling(int depth, int calls, const std::string& name, const std::vector<Node>& innermost = {}) {
  auto model = make_model({Node("f" + std::to_string(depth), name, {"x"}, {"y"}, {}, "own")});
  model.set_opset("own", 1);
  for (int i = 0; i <= depth; ++i) {
    Msg f = Msg().text(1, "f" + std::to_string(i)).text(4, "p").text(5, "q");
    std::vector<Node> nodes = i == 0 ? innermost : std::vector<Node>();
    for (int c = 0; i > 0 && c < calls; ++c) {
      const auto number = std::to_string(c);
      nodes.emplace_back("f" + std::to_string(i - 1), name, Names{c == 0 ? "p" : "t" + std::to_string(c - 1)},
                         Names{"t" + number}, std::vector<Attribute>(), "own");
    }
    const auto last = nodes.empty() ? std::string("p") : nodes.back().outputs().front();
    nodes.emplace_back("Neg", name, Names{last}, Names{"q"});
    for (const auto& node : nodes) f.text(7, node.encode().view());
    f.text(10, "own");
    model.other.push_back(onnx::string_field(onnx::kFunctionField, f.bytes));
    model.functions.push_back("own::f" + std::to_string(i));
  }
  return model;
}

class Holders : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Holders, NestWithNamesThatGrowWithTheDepth) {
  const auto [op_type, attribute] = GetParam();
  for (const int depth : {1, 8, 30, 60}) {
    auto model = make_model({nested(op_type, attribute, depth, "same")});
    unfold(model);
    EXPECT_LE(longest_name(model), 24U * static_cast<unsigned>(depth + 1));
    EXPECT_NO_THROW(Index{model});
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Holders,
                         ::testing::Values(std::pair("If", "then_branch"), std::pair("If", "else_branch"),
                                           std::pair("Loop", "body"), std::pair("Scan", "body")));

TEST(UnfoldedFunctions, NestWithNamesThatGrowWithTheDepth) {
  for (const int depth : {1, 10, 60, 95}) {
    auto model = calling(depth, 1, "same");
    unfold(model);
    EXPECT_EQ(model.graph.nodes.size(), static_cast<std::size_t>(depth) + 1);
    EXPECT_LE(longest_name(model), 8U * static_cast<unsigned>(depth + 1));
  }
}

TEST(UnfoldedFunctions, MayTakeSoMuchInAll) {
  const std::string name(1000, 'n');
  auto ordinary = calling(5, 4, "call");
  EXPECT_NO_THROW(unfold(ordinary));
  std::vector<std::pair<const char*, Model>> hostile;
  hostile.emplace_back("names", calling(5, 8, name));
  hostile.emplace_back("inputs", calling(8, 3, "call", {Node("Sum", "", Names(10'000, "p"), {"s"})}));
  std::vector<Attribute> attributes;
  for (int i = 0; i < 3000; ++i) attributes.push_back(Attribute::of_int("a" + std::to_string(i), i));
  hostile.emplace_back("attributes", calling(8, 3, "call", {Node("Neg", "", {"p"}, {"s"}, attributes)}));
  std::vector<onnx::ValueInfo> outputs(5000, value("b"));
  hostile.emplace_back(
      "outputs of bodies",
      calling(7, 3, "call",
              {Node("If", "", {"p"}, {"s"}, {body("then_branch", {Node("Neg", "", {"p"}, {"b"})}, outputs)})}));
  for (auto& [what, model] : hostile) {
    SCOPED_TRACE(what);
    expect_error([&, &model = model] { unfold(model); }, "come to more than 64.0 MiB of names");
  }
}

// With a number for each that is found at once.
TEST(UnfoldedBodies, ManyOfOneNameTakeLinearTime) {
  std::vector<Node> nodes;
  for (int i = 0; i < 30'000; ++i) {
    const std::string in = i == 0 ? "x" : "y" + std::to_string(i - 1);
    const auto branch = body("then_branch", {Node("Neg", "same", {in}, {"made"})}, {value("made")});
    nodes.push_back({"If", "same", {"x"}, {i == 29'999 ? "y" : "y" + std::to_string(i)}, {branch}});
  }
  auto model = make_model(std::move(nodes));
  unfold(model);
  EXPECT_EQ(model.graph.nodes.size(), 60'000U);
  EXPECT_LE(longest_name(model), 40U);
}

// Its body belongs to the graph that the call stands in.
TEST(UnfoldedFunctions, StayCallsWhereACallHoldsABody) {
  auto model = calling(0, 0, "call");
  model.graph.nodes[0].set_attribute(body("given", {Node("Neg", "", {"x"}, {"b"})}, {value("b")}));
  unfold(model);
  EXPECT_EQ(op_types(model), Names{"f0"});
  EXPECT_EQ(model.other.size(), 2U);  // the function, and the IR version
}

onnx::Tensor condition(const std::string& name, std::uint8_t is_true) {
  return onnx::make_tensor<std::uint8_t>(name, DataType::boolean, {}, {&is_true, 1});
}

// An If whose branches are "Neg" and "Abs" of x, or of what is around it.
Node branching(const std::string& decides, std::vector<Node> then_nodes) {
  return {"If",
          "if",
          {decides},
          {"y"},
          {body("then_branch", std::move(then_nodes), {value("t")}),
           body("else_branch", {Node("Abs", "other", {"x"}, {"e"})}, {value("e")})}};
}

std::vector<std::string> operators(const Model& model) {
  std::vector<std::string> types;
  for (const auto& node : model.graph.nodes) types.push_back(node.op_type());
  return types;
}

TEST(ConstantBranches, StandInThePlaceOfTheIf) {
  const std::vector<Node> taken{Node("Neg", "n", {"x"}, {"t"})};
  for (const bool is_true : {true, false}) {
    auto model = make_model({branching("c", taken)}, {condition("c", is_true ? 1 : 0)});
    unfold(model);
    EXPECT_EQ(operators(model), (std::vector<std::string>{is_true ? "Neg" : "Abs", "Identity"}));
    for (const auto& node : model.graph.nodes) EXPECT_EQ(node.body(), 0);
    EXPECT_EQ(model.graph.nodes.back().outputs(), Names{"y"});
    EXPECT_TRUE(model.graph.initializers.empty());
  }
}

TEST(ConstantBranches, AreFoundThroughNotAndInBodiesOfOthers) {
  const Node inner("If", "inner", {"turned"}, {"t"},
                   {body("then_branch", {Node("Neg", "n", {"x"}, {"a"})}, {value("a")}),
                    body("else_branch", {Node("Exp", "m", {"x"}, {"b"})}, {value("b")})});
  auto model = make_model({Node("Not", "not", {"c"}, {"turned"}), branching("d", {inner})}, {condition("c", 1)}, 17,
                          {value("x"), value("d", {}, DataType::boolean)});
  unfold(model);
  const auto types = operators(model);
  EXPECT_EQ(std::count(types.begin(), types.end(), "If"), 1);
  EXPECT_EQ(std::count(types.begin(), types.end(), "Neg"), 0);
  EXPECT_EQ(std::count(types.begin(), types.end(), "Exp"), 1);
  for (const auto& node : model.graph.nodes)
    EXPECT_EQ(node.body() != 0, node.is("Exp") || node.is("Identity") || node.is("Abs"));
}

TEST(ConstantBranches, ConditionsThatAreInputsDecideWhenTheModelRuns) {
  auto model = make_model({branching("c", {Node("Neg", "n", {"x"}, {"t"})})}, {condition("c", 1)}, 17,
                          {value("x"), value("c", {}, DataType::boolean)});
  unfold(model);
  EXPECT_EQ(model.graph.nodes.back().op_type(), "If");
}

// What the HTP has other forms for: Gelu instead of Erf, convolutions instead of BatchNormalization.

onnx::TensorData kept(std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); }

ValueTypes types_of(const Names& names, const std::vector<std::int64_t>& shape) {
  ValueTypes types;
  std::vector<onnx::Dim> dims;
  for (const auto d : shape) dims.push_back({d, ""});
  for (const auto& name : names) types[name] = {DataType::float32, dims};
  return types;
}

class Gelus : public ::testing::Test {
 protected:
  static Model model_of(std::vector<Node> ends) {
    std::vector<Node> nodes{
        {"Div", "d", {"x", "root"}, {"d"}}, {"Erf", "e", {"d"}, {"e"}}, {"Add", "s", {"one", "e"}, {"s"}}};
    nodes.insert(nodes.end(), ends.begin(), ends.end());
    return make_model(std::move(nodes),
                      {floats("root", {}, {1.4142135F}), floats("one", {}, {1}), floats("half", {}, {0.5F})});
  }
  static void expect_gelu(std::vector<Node> ends) {
    auto model = model_of(std::move(ends));
    EXPECT_EQ(compose_gelus(model, types_of({"x", "d", "e", "s", "p", "h", "y"}, {2})).size(), 1U);
    ASSERT_EQ(model.graph.nodes.size(), 1U);
    const auto& node = model.graph.nodes[0];
    EXPECT_EQ(node.op_type(), "Gelu");
    EXPECT_EQ(node.domain(), "com.microsoft");
    EXPECT_EQ(node.inputs(), Names{"x"});
    EXPECT_EQ(node.outputs(), Names{"y"});
    EXPECT_EQ(model.opset("com.microsoft"), 1);
    EXPECT_TRUE(model.graph.initializers.empty());
  }
};

TEST_F(Gelus, InWhateverOrderIsMultiplied) {
  expect_gelu({{"Mul", "p", {"x", "s"}, {"p"}}, {"Mul", "y", {"p", "half"}, {"y"}}});
  expect_gelu({{"Mul", "h", {"x", "half"}, {"h"}}, {"Mul", "y", {"h", "s"}, {"y"}}});
  expect_gelu({{"Mul", "h", {"half", "s"}, {"h"}}, {"Mul", "y", {"x", "h"}, {"y"}}});
}

TEST_F(Gelus, OthersAreLeftAlone) {
  const auto types = types_of({"x", "d", "e", "s", "p", "y"}, {2});
  auto other_value = model_of({{"Mul", "p", {"d", "s"}, {"p"}}, {"Mul", "y", {"p", "half"}, {"y"}}});
  EXPECT_TRUE(compose_gelus(other_value, types).empty());
  auto not_halved = model_of({{"Mul", "p", {"x", "s"}, {"p"}}, {"Mul", "y", {"p", "one"}, {"y"}}});
  EXPECT_TRUE(compose_gelus(not_halved, types).empty());
  auto read_twice =
      model_of({{"Mul", "p", {"x", "s"}, {"p"}}, {"Mul", "q", {"p", "half"}, {"q"}}, {"Add", "y", {"q", "s"}, {"y"}}});
  EXPECT_TRUE(compose_gelus(read_twice, types).empty());
  EXPECT_EQ(read_twice.graph.nodes.size(), 6U);
}

Model normalized() {
  return make_model(
      {{"BatchNormalization", "n", {"x", "a", "b", "m", "v"}, {"y"}}},
      {floats("a", {2}, {1, 2}), floats("b", {2}, {3, 4}), floats("m", {2}, {0.5F, 1}), floats("v", {2}, {4, 9})});
}

TEST(BatchNorms, BecomeConvolutionsOfOnePlace) {
  auto model = normalized();
  EXPECT_EQ(batch_norms_as_convolutions(model, types_of({"x", "y"}, {1, 2, 3, 3}), kept).size(), 1U);
  const auto& node = model.graph.nodes[0];
  ASSERT_TRUE(node.is("Conv"));
  EXPECT_EQ(node.int_or("group", 1), 2);
  ASSERT_EQ(model.graph.initializers.size(), 2U);
  EXPECT_EQ(model.graph.initializers[0].dims, (std::vector<std::int64_t>{2, 1, 1, 1}));
  const auto scale = onnx::to_doubles(model.graph.initializers[0]),
             shift = onnx::to_doubles(model.graph.initializers[1]);
  for (std::size_t c = 0; c < 2; ++c) {
    const double mean = c == 0 ? 0.5 : 1, variance = c == 0 ? 4 : 9, a = c == 0 ? 1 : 2, b = c == 0 ? 3 : 4;
    EXPECT_NEAR(scale[c], a / std::sqrt(variance + 1e-5), 1e-6);
    EXPECT_NEAR(shift[c], b - mean * a / std::sqrt(variance + 1e-5), 1e-6);
  }
}

TEST(BatchNorms, OfOtherThanImagesAreLeftAlone) {
  auto model = normalized();
  EXPECT_TRUE(batch_norms_as_convolutions(model, types_of({"x", "y"}, {1, 2}), kept).empty());
  EXPECT_TRUE(model.graph.nodes[0].is("BatchNormalization"));
}

std::vector<float> matrix_of(std::size_t size, std::uint64_t seed) {
  std::vector<float> rows(size * size, 0.0F);
  for (std::size_t i = 0; i < size; ++i) rows[i * size + i] = 1;
  OrthogonalRotation(size, seed).apply(rows, size);
  return rows;
}

class Mixes : public testing::TestWithParam<std::size_t> {};

TEST_P(Mixes, AreOrthogonalAndKeepTheMean) {
  const std::size_t size = GetParam();
  const auto r = matrix_of(size, 0);
  for (std::size_t i = 0; i < size; ++i) {
    double sum = 0;
    for (std::size_t j = 0; j < size; ++j) {
      sum += r[i * size + j];
      EXPECT_NEAR(r[i * size + j], r[j * size + i], 1e-6);
      double product = 0;
      for (std::size_t k = 0; k < size; ++k) product += static_cast<double>(r[i * size + k]) * r[j * size + k];
      EXPECT_NEAR(product, i == j ? 1 : 0, 1e-5);
    }
    EXPECT_NEAR(sum, 1, 1e-5);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Mixes, testing::Values(1, 2, 3, 12, 35, 64, 96));

TEST(OrthogonalRotation, SpreadsEachChannel) {
  constexpr std::size_t kSize = 768;
  const auto r = matrix_of(kSize, 0);
  const auto largest = std::max_element(r.begin(), r.end(), [](float a, float b) { return std::abs(a) < std::abs(b); });
  EXPECT_LT(std::abs(*largest), 6 / std::sqrt(static_cast<float>(kSize)));
}

TEST(OrthogonalRotation, FollowsFromItsSeed) {
  EXPECT_EQ(matrix_of(24, 3), matrix_of(24, 3));
  EXPECT_NE(matrix_of(24, 3), matrix_of(24, 4));
}

TEST(OrthogonalRotation, GivesTheSameForColumnsAloneAndTogether) {
  const OrthogonalRotation mix(12, 0);
  std::vector<float> two(24), one(12);
  for (std::size_t i = 0; i < 24; ++i) two[i] = static_cast<float>(i * i % 7);
  for (std::size_t i = 0; i < 12; ++i) one[i] = two[2 * i + 1];
  mix.apply(two, 2);
  mix.apply(one, 1);
  for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(one[i], two[2 * i + 1]);
}

// Products of few rows, one behind the other: which of them get a third axis.

const Store kInMemory = [](std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); };

Node gemm(const std::string& x, const std::string& w, const std::string& y, const std::string& bias = {}) {
  std::vector<std::string> inputs{x, w};
  if (!bias.empty()) inputs.push_back(bias);
  return {"Gemm", "gemm_" + y, inputs, {y}, {Attribute::of_int("transB", 1)}};
}

class FewRows : public ::testing::Test {
 protected:
  // x of [rows, 2] (0: as many as one likes) becomes y of [rows, 3].
  static Notes rewrite(Model& model, std::int64_t rows) {
    ValueTypes types;
    for (const char* name : {"x", "a", "b", "y"}) {
      const onnx::Dim first = rows > 0 ? onnx::Dim{rows, ""} : onnx::Dim{-1, "n"};
      types[name] = {DataType::float32, std::vector<onnx::Dim>{first, {2, ""}}};
    }
    return add_axis_for_few_rows(model, types, kInMemory);
  }
  static Model model_of(std::vector<Node> nodes) {
    return make_model(std::move(nodes),
                      {floats("w", {2, 2}, {1, 2, 3, 4}), floats("v", {3, 2}, {1, 2, 3, 4, 5, 6}),
                       floats("c", {3}, {1, 0, 0}), floats("none", {3}, {0, 0, 0})},
                      17, {value("x", {1, 2})}, {value("y", {1, 3})});
  }
};

TEST_F(FewRows, BehindOthersGetAnAxis) {
  for (const std::int64_t rows : {0, 1, 8}) {
    auto model = model_of({gemm("x", "w", "a"), {"Relu", "", {"a"}, {"b"}}, gemm("b", "v", "y")});
    EXPECT_EQ(rewrite(model, rows).size(), 1U);
    EXPECT_EQ(op_types(model), (Names{"Gemm", "Relu", "Reshape", "MatMul", "Reshape"}));
    const auto& product = model.graph.nodes[3];
    EXPECT_EQ(product.name(), "gemm_y");
    const Index index(model);
    const auto& weight = model.graph.initializers[static_cast<std::size_t>(index.initializer(product.inputs()[1]))];
    EXPECT_EQ(weight.dims, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(onnx::to_doubles(weight), (std::vector<double>{1, 3, 5, 2, 4, 6}));
    EXPECT_EQ(model.graph.nodes[4].outputs()[0], "y");
  }
}

TEST_F(FewRows, KeepTheirBiasUnlessItIsZero) {
  auto model = model_of({gemm("x", "w", "a"), gemm("a", "v", "y", "c")});
  EXPECT_EQ(rewrite(model, 1).size(), 1U);
  EXPECT_EQ(op_types(model), (Names{"Gemm", "Reshape", "MatMul", "Add", "Reshape"}));
  auto without = model_of({gemm("x", "w", "a"), gemm("a", "v", "y", "none")});
  EXPECT_EQ(rewrite(without, 1).size(), 1U);
  EXPECT_EQ(op_types(without), (Names{"Gemm", "Reshape", "MatMul", "Reshape"}));
}

TEST_F(FewRows, EverySecondOfARowOfThemIsEnough) {
  auto model = model_of({gemm("x", "w", "a"), gemm("a", "w", "b"), gemm("b", "v", "y")});
  EXPECT_EQ(rewrite(model, 1).size(), 1U);
  EXPECT_EQ(op_types(model), (Names{"Gemm", "Reshape", "MatMul", "Reshape", "Gemm"}));
}

TEST_F(FewRows, StayAsTheyAreAloneAndWithMoreRows) {
  auto alone = model_of({gemm("x", "v", "y")});
  EXPECT_TRUE(rewrite(alone, 1).empty());
  auto many = model_of({gemm("x", "w", "a"), gemm("a", "v", "y")});
  EXPECT_TRUE(rewrite(many, 9).empty());
}

}  // namespace
}  // namespace detent::graph::test
