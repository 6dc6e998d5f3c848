// Pairs of 16 bits around operators whose activations differ in width.
#include "quantization/emit/integer_operators.h"

#include <gtest/gtest.h>

#include "graph/index.h"
#include "support.h"

namespace detent::quantization {
namespace {

using testing::Builder;
using testing::config;

// x -> first -> Relu a -> second -> y, of which `wide` have 16 bits.
Emitted chain(const std::vector<std::string>& wide, const QuantConfig& options) {
  Builder b;
  b.input("x").constant("w1", {4, 4, 1, 1}).constant("w2", {4, 4, 1, 1});
  b.node("Conv", {"x", "w1"}, {"c"}).node("Relu", {"c"}, {"a"}).node("Conv", {"a", "w2"}, {"y"}).output("y");
  auto placement = b.place(options);
  for (auto& mark : placement.marks) {
    for (const auto& value : wide) mark.wide = mark.wide || mark.value == value;
  }
  calibration::Ranges ranges;
  for (const auto& value : placement.to_observe()) ranges[value] = {-1.0F, 3.0F};
  auto proposals = testing::proposals(ranges);
  proposals.wide = proposals.ranges;
  proposals.constants = scan_weights(b.model, placement, false);
  const auto assignment = assign(b.model, std::move(placement), proposals, options);
  return emit_qdq(b.model, assignment, options);
}

QuantConfig for_htp() {
  return config([](auto& c) { c.target = "qnn"; });
}

// The type of the integers that a product's value stands between.
onnx::DataType width(const onnx::Model& model, const onnx::Node& pair) {
  const graph::Index index(model);
  return model.graph.initializers[static_cast<std::size_t>(index.initializer(pair.inputs()[2]))].type;
}

const onnx::Node& maker(const onnx::Model& model, const std::string& value) {
  return model.graph.nodes[static_cast<std::size_t>(graph::Index(model).producer(value))];
}

const onnx::Node& reader(const onnx::Model& model, const std::string& value) {
  return model.graph.nodes[static_cast<std::size_t>(graph::Index(model).consumers(value).front())];
}

const onnx::Tensor& tensor(const onnx::Model& model, const std::string& name) {
  return model.graph.initializers[static_cast<std::size_t>(graph::Index(model).initializer(name))];
}

TEST(Widths, NothingIsAddedWhereAllAgree) {
  for (const auto& wide : {std::vector<std::string>{}, {"x", "a", "y"}}) {
    const auto emitted = chain(wide, for_htp());
    EXPECT_EQ(emitted.model.graph.nodes.size(), 11U);
  }
}

TEST(Widths, BothProductsAroundA16BitValueReadAndMake16Bits) {
  const auto emitted = chain({"a"}, for_htp());
  const auto& model = emitted.model;
  for (const std::size_t n : {0U, 2U}) {
    const auto& conv = model.graph.nodes.at(emitted.provenance.nodes[n].value());
    ASSERT_EQ(conv.op_type(), "Conv");
    EXPECT_EQ(width(model, maker(model, conv.inputs()[0])), onnx::DataType::uint16);
    const auto* next = &reader(model, conv.outputs()[0]);
    if (next->op_type() == "Relu") next = &reader(model, next->outputs()[0]);
    EXPECT_EQ(width(model, *next), onnx::DataType::uint16);
  }
  // The pair behind x: 256 steps in each of those of 8 bits.
  const auto& wide = maker(model, model.graph.nodes.at(emitted.provenance.nodes[0].value()).inputs()[0]);
  const auto& narrow = emitted.provenance.values.at("x");
  EXPECT_EQ(onnx::to_doubles(tensor(model, wide.inputs()[1]))[0] * 256,
            onnx::to_doubles(tensor(model, narrow.scale))[0]);
  EXPECT_EQ(onnx::to_int64s(tensor(model, wide.inputs()[2]))[0],
            256 * onnx::to_int64s(tensor(model, narrow.zero_point))[0]);
  // The results of the second are made 8 bits from 16.
  const auto& last = maker(model, emitted.provenance.values.at("y").stored);
  EXPECT_EQ(width(model, last), onnx::DataType::uint8);
  EXPECT_EQ(maker(model, last.inputs()[0]).op_type(), "DequantizeLinear");
}

TEST(Widths, SignedIntegers) {
  auto options = for_htp();
  options.activation_type = QuantType::int8;
  const auto emitted = chain({"a"}, options);
  const auto& conv = emitted.model.graph.nodes.at(emitted.provenance.nodes[0].value());
  EXPECT_EQ(width(emitted.model, maker(emitted.model, conv.inputs()[0])), onnx::DataType::int16);
}

TEST(Widths, AHardSigmoidBetweenBothWorksWith8Bits) {
  Builder b;
  b.input("x").node("HardSigmoid", {"x"}, {"y"}).output("y");
  const auto options = for_htp();
  auto placement = b.place(options);
  for (auto& mark : placement.marks) mark.wide = mark.value == "x";
  auto proposals = testing::proposals({{"x", {-1.0F, 3.0F}}, {"y", {0.0F, 1.0F}}});
  proposals.wide = proposals.ranges;
  const auto emitted = emit_qdq(b.model, assign(b.model, std::move(placement), proposals, options), options);
  const auto& node = emitted.model.graph.nodes.at(emitted.provenance.nodes[0].value());
  const auto& narrow = maker(emitted.model, node.inputs()[0]);
  EXPECT_EQ(width(emitted.model, narrow), onnx::DataType::uint8);
  EXPECT_EQ(width(emitted.model, reader(emitted.model, node.outputs()[0])), onnx::DataType::uint8);
  EXPECT_NEAR(onnx::to_doubles(tensor(emitted.model, narrow.inputs()[1]))[0], 4.0 / 255, 1e-6);
  EXPECT_EQ(onnx::to_int64s(tensor(emitted.model, narrow.inputs()[2]))[0], 64);
}

TEST(Widths, AConstantBesideA16BitValueHasItsNumbersIn16Bits) {
  Builder b;
  b.input("x").constant("half", {1}, {-0.5F}).constant("w", {4, 4, 1, 1});
  b.node("Conv", {"x", "w"}, {"c"}).node("Mul", {"c", "half"}, {"y"}).output("y");
  const auto options = for_htp();
  auto placement = b.place(options);
  for (auto& mark : placement.marks) mark.wide = mark.value == "y";
  auto proposals = testing::proposals({{"x", {-1.0F, 3.0F}}, {"c", {-1.0F, 3.0F}}, {"y", {-1.5F, 0.5F}}});
  proposals.wide = proposals.ranges;
  proposals.constants = scan_weights(b.model, placement, false);
  const auto emitted = emit_qdq(b.model, assign(b.model, std::move(placement), proposals, options), options);
  const auto& model = emitted.model;
  const auto& product = model.graph.nodes.at(emitted.provenance.nodes[1].value());
  ASSERT_EQ(product.op_type(), "Mul");
  const auto& pair = maker(model, product.inputs()[1]);
  EXPECT_EQ(width(model, pair), onnx::DataType::uint16);
  const auto step = onnx::to_doubles(tensor(model, pair.inputs()[1]))[0];
  const auto zero = onnx::to_int64s(tensor(model, pair.inputs()[2]))[0];
  EXPECT_NEAR(static_cast<double>(onnx::to_int64s(tensor(model, pair.inputs()[0]))[0] - zero) * step, -0.5, 1e-6);
  // The weight stays, and nothing is left of the 8 bits.
  const auto& conv = model.graph.nodes.at(emitted.provenance.nodes[0].value());
  EXPECT_EQ(width(model, maker(model, conv.inputs()[1])), onnx::DataType::int8);
  const graph::Index index(model);
  for (const auto& node : model.graph.nodes) {
    for (const auto& made : node.outputs())
      EXPECT_TRUE(index.is_output(made) || !index.consumers(made).empty()) << node.label();
  }
  for (const auto& constant : model.graph.initializers)
    EXPECT_FALSE(index.consumers(constant.name).empty()) << constant.name;
}

TEST(Widths, OtherTargetsKeepTheirPairs) {
  EXPECT_EQ(chain({"a"}, config([](auto& c) { c.target = "tensorrt"; })).model.graph.nodes.size(), 11U);
}

// x times y, of which `wide` have 16 bits.
Emitted product_of_activations(const std::vector<std::string>& wide, calibration::Range second) {
  Builder b;
  b.input("x").input("y").node("MatMul", {"x", "y"}, {"z"}).output("z");
  const auto options = for_htp();
  auto placement = b.place(options);
  for (auto& mark : placement.marks) {
    for (const auto& value : wide) mark.wide = mark.wide || mark.value == value;
  }
  auto proposals = testing::proposals({{"x", {-1.0F, 3.0F}}, {"y", second}, {"z", {-2.0F, 2.0F}}});
  proposals.wide = proposals.ranges;
  return emit_qdq(b.model, assign(b.model, std::move(placement), proposals, options), options);
}

TEST(Widths, TheSecondOfTwoActivationsHasASignAndTheZeroPoint0) {
  for (const auto second : {calibration::Range{-1.0F, 3.0F}, {0.0F, 3.0F}, {-3.0F, 0.0F}, {-2.0F, 2.0F}}) {
    for (const auto& wide : {std::vector<std::string>{"x", "y", "z"}, {"x", "z"}, {"z"}}) {
      const auto emitted = product_of_activations(wide, second);
      const auto& model = emitted.model;
      const auto& product = model.graph.nodes.at(emitted.provenance.nodes[0].value());
      EXPECT_EQ(width(model, maker(model, product.inputs()[0])), onnx::DataType::uint16);
      const auto& pair = maker(model, product.inputs()[1]);
      EXPECT_EQ(width(model, pair), onnx::DataType::int16);
      EXPECT_EQ(onnx::to_int64s(tensor(model, pair.inputs()[2]))[0], 0);
      // It reaches as far as the range does, and is no coarser than that asks for.
      const double step = onnx::to_doubles(tensor(model, pair.inputs()[1]))[0];
      const double far = std::max(-second.min, second.max);
      EXPECT_GE(step * 32768, far * 0.9999);
      const bool is_wide = wide.size() == 3;
      EXPECT_LE(step, (is_wide ? far / 32767 : (second.max - second.min) / 255 / 128) * 1.0001);
    }
  }
  const auto narrow = product_of_activations({}, {-1.0F, 3.0F});
  EXPECT_EQ(narrow.model.graph.nodes.size(), 7U);  // with 8 bits all is as it was
}

// x -> LayerNormalization -> n -> Reshape, at times -> MatMul -> y.
Emitted normalized_product(std::int64_t rows, bool reshapes, const std::string& target) {
  Builder b;
  b.input("x").constant("s", {8}).constant("b", {8}).constant("w", {8, 3}).integers("shape", {-1, 8});
  b.node("LayerNormalization", {"x", "s", "b"}, {"n"});
  if (reshapes) b.node("Reshape", {"n", "shape"}, {"r"});
  b.node("MatMul", {reshapes ? "r" : "n", "w"}, {"y"}).output("y");
  b.types["n"].shape = std::vector<onnx::Dim>{{1, ""}, {rows, ""}, {8, ""}};
  const auto options = config([&](auto& c) {
    c.target = target;
    if (target == "qnn:a16") c.activation_type = QuantType::uint16;
  });
  auto placement = b.place(options);
  auto proposals = testing::proposals({{"x", {-1.0F, 3.0F}}, {"n", {-2.0F, 2.0F}}, {"y", {-9.0F, 7.0F}}});
  proposals.constants = scan_weights(b.model, placement, false);
  return emit_qdq(b.model, assign(b.model, std::move(placement), proposals, options), options, b.types);
}

TEST(Widths, ALayerNormalizationBetween8BitsWorksWith16OnTheHtp) {
  for (const std::string target : {"qnn", "amd-npu:xint8"}) {
    const auto emitted = normalized_product(5, false, target);
    const auto& model = emitted.model;
    const auto& norm = model.graph.nodes.at(emitted.provenance.nodes[0].value());
    ASSERT_EQ(norm.op_type(), "LayerNormalization");
    const auto inside = width(model, maker(model, norm.inputs()[0]));
    EXPECT_EQ(inside, width(model, reader(model, norm.outputs()[0])));
    EXPECT_EQ(inside == onnx::DataType::uint16, target == "qnn");
    // What is outside of it has 8 bits.
    const auto& product = model.graph.nodes.at(emitted.provenance.nodes[1].value());
    EXPECT_NE(width(model, maker(model, product.inputs()[0])), onnx::DataType::uint16);
  }
}

TEST(Widths, AMulBy1StandsBetween16NormalizedRowsAndTheirProduct) {
  for (const bool reshapes : {false, true}) {
    for (const std::int64_t rows : {15, 16}) {
      const auto emitted = normalized_product(rows, reshapes, "qnn:a16");
      const auto& model = emitted.model;
      const auto& product = model.graph.nodes.at(emitted.provenance.nodes.back().value());
      ASSERT_EQ(product.op_type(), "MatMul");
      const auto& pair = maker(model, product.inputs()[0]);
      const auto& before = maker(model, maker(model, pair.inputs()[0]).inputs()[0]);
      EXPECT_EQ(before.op_type() == "Mul", rows == 16) << rows << reshapes;
      if (rows != 16) continue;
      const auto& factor = maker(model, before.inputs()[1]);
      EXPECT_EQ(onnx::to_int64s(tensor(model, factor.inputs()[0]))[0], 65535);
      EXPECT_EQ(onnx::to_doubles(tensor(model, factor.inputs()[1]))[0], static_cast<double>(1.0F / 65535));
      EXPECT_EQ(onnx::to_int64s(tensor(model, factor.inputs()[2]))[0], 0);
      const auto& given = maker(model, before.inputs()[0]);
      EXPECT_EQ(given.inputs()[1], pair.inputs()[1]);
      EXPECT_EQ(given.inputs()[2], pair.inputs()[2]);
    }
  }
}

TEST(Widths, AMulReadsATanhOf16BitsWithASignOnTheHtp) {
  for (const auto& [target, type] : {std::pair{"qnn:a16", onnx::DataType::int16}, {"qnn", onnx::DataType::uint8}}) {
    Builder b;
    b.input("x").node("Tanh", {"x"}, {"t"}).node("Sigmoid", {"x"}, {"s"});
    b.node("Mul", {"t", "s"}, {"m"}).node("Add", {"t", "m"}, {"y"}).output("y");
    const auto options = config([&, name = target](auto& c) {
      c.target = name;
      if (c.target == "qnn:a16") c.activation_type = QuantType::uint16;
    });
    const calibration::Range unit{-1.0F, 1.0F};
    auto proposals = testing::proposals({{"x", {-2.0F, 2.0F}}, {"t", unit}, {"s", unit}, {"m", unit}, {"y", unit}});
    const auto emitted = emit_qdq(b.model, assign(b.model, b.place(options), proposals, options), options);
    const auto& model = emitted.model;
    const auto& product = model.graph.nodes.at(emitted.provenance.nodes[2].value());
    ASSERT_EQ(product.op_type(), "Mul");
    const auto& pair = maker(model, product.inputs()[0]);
    EXPECT_EQ(width(model, pair), type);
    const auto zero = onnx::to_int64s(tensor(model, pair.inputs()[2]))[0];
    EXPECT_EQ(zero == 0, type == onnx::DataType::int16);
    // What else is read stays as it is, and so does the Tanh for others.
    const auto others = type == onnx::DataType::int16 ? onnx::DataType::uint16 : type;
    EXPECT_EQ(width(model, maker(model, product.inputs()[1])), others);
    const auto& sum = model.graph.nodes.at(emitted.provenance.nodes[3].value());
    EXPECT_EQ(width(model, maker(model, sum.inputs()[0])), others);
  }
}

}  // namespace
}  // namespace detent::quantization
