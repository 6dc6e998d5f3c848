// The rewrites but for the opset upgrade, by structure; tests/exec compares what the models compute.
#include "graph/rewrites/rewrite.h"

#include <cmath>

#include "graph/support.h"

namespace detent::graph::test {
namespace {

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

}  // namespace
}  // namespace detent::graph::test
