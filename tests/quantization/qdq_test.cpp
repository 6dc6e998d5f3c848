#include "quantization/emit/emitters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>

#include "base/error.h"
#include "graph/index.h"
#include "onnx/tensor.h"
#include "quantization/blocks/block_weights.h"
#include "quantization/emit/dynamic.h"
#include "quantization/floats/float_placement.h"
#include "quantization/weight_operators.h"
#include "support.h"

namespace detent::quantization {
namespace {

using onnx::Attribute;
using testing::Builder;
using testing::config;
using testing::has_tensor;
using testing::maker;
using testing::tensor;
using Names = std::vector<std::string>;

struct Inserted {
  onnx::Model model;
  AssignedValues values;
  std::vector<std::string> notes;
  Provenance provenance;
};

// All values range from -1 to 3 unless given.
Inserted inserted(const Builder& b, const QuantConfig& options = {}, const calibration::Ranges& given = {}) {
  auto placement = b.place(options);
  calibration::Ranges ranges = given;
  for (const auto& value : placement.to_observe()) ranges.try_emplace(value, calibration::Range{-1.0F, 3.0F});
  auto proposals = testing::proposals(ranges);
  proposals.constants = scan_weights(b.model, placement, false);
  const auto assignment = assign(b.model, std::move(placement), proposals, options);
  auto emitted = emit_qdq({b.model}, assignment);
  auto notes = assignment.notes;
  notes.insert(notes.end(), emitted.notes.begin(), emitted.notes.end());
  return {std::move(emitted.model), assignment.values, std::move(notes), std::move(emitted.provenance)};
}

// Every value is made once, and before it is read.
void expect_sound(const onnx::Model& model) {
  EXPECT_NO_THROW(graph::Index{model});
  std::set<std::string> known{""};
  for (const auto& value : model.graph.inputs) known.insert(value.name);
  for (const auto& value : model.graph.initializers) known.insert(value.name);
  std::set<std::string> names;
  for (const auto& node : model.graph.nodes) {
    EXPECT_TRUE(names.insert(node.name()).second) << node.name();
    for (const auto& value : node.inputs()) EXPECT_TRUE(known.contains(value)) << node.name() << " reads " << value;
    for (const auto& value : node.outputs()) known.insert(value);
  }
  for (const auto& value : model.graph.outputs) EXPECT_TRUE(known.contains(value.name)) << value.name;
}

template <class T>
std::vector<T> elements(const onnx::Tensor& t) {
  std::vector<std::byte> bytes;
  t.data.write_to([&](std::span<const std::byte> b) { bytes.insert(bytes.end(), b.begin(), b.end()); });
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

Builder conv_with_bias() {
  Builder b;
  b.input("x").constant("w", {2, 1, 1, 1}, {1.0F, -4.0F}).constant("b", {2}, {0.5F, -0.25F});
  b.node("Conv", {"x", "w", "b"}, {"y"}).output("y");
  return b;
}

TEST(Insert, NamesAreThoseOfOnnxRuntime) {
  const auto [model, values, notes, provenance] = inserted(conv_with_bias());
  expect_sound(model);
  const auto& conv = maker(model, "y_QuantizeLinear_Input");
  EXPECT_EQ(conv.inputs(), (Names{"x_DequantizeLinear_Output", "w_DequantizeLinear_Output", "b"}));
  EXPECT_EQ(maker(model, "x_QuantizeLinear_Output").inputs(), (Names{"x", "x_scale", "x_zero_point"}));
  EXPECT_EQ(maker(model, "x_QuantizeLinear_Output").name(), "x_QuantizeLinear");
  EXPECT_EQ(maker(model, "x_DequantizeLinear_Output").inputs(),
            (Names{"x_QuantizeLinear_Output", "x_scale", "x_zero_point"}));
  EXPECT_EQ(maker(model, "x_DequantizeLinear_Output").name(), "x_DequantizeLinear");
  EXPECT_EQ(maker(model, "w_DequantizeLinear_Output").inputs(), (Names{"w_quantized", "w_scale", "w_zero_point"}));
  EXPECT_EQ(maker(model, "w_DequantizeLinear_Output").int_or("axis", -7), 0);
  EXPECT_EQ(maker(model, "b").inputs(), (Names{"b_quantized", "b_quantized_scale", "b_quantized_zero_point"}));
  EXPECT_EQ(maker(model, "b").name(), "b_DequantizeLinear");
  EXPECT_FALSE(has_tensor(model, "w"));
  EXPECT_FALSE(has_tensor(model, "b"));
  EXPECT_TRUE(notes.empty());
}

TEST(Insert, GraphInputsAndOutputsKeepTheirNames) {
  const auto model = inserted(conv_with_bias()).model;
  EXPECT_EQ(model.graph.inputs.at(0).name, "x");
  EXPECT_EQ(model.graph.outputs.at(0).name, "y");
  EXPECT_TRUE(maker(model, "y").is("DequantizeLinear"));
  EXPECT_EQ(maker(model, "y_QuantizeLinear_Output").inputs().at(0), "y_QuantizeLinear_Input");
}

TEST(Insert, AnOutputThatIsReadInsideTooIsReadDequantized) {
  Builder b = conv_with_bias();
  b.node("Sigmoid", {"y"}, {"z"}).output("z");
  const auto model = inserted(b).model;
  expect_sound(model);
  EXPECT_EQ(maker(model, "z_QuantizeLinear_Input").inputs(), (Names{"y"}));
}

TEST(Insert, StoresWeightsBiasesAndParameters) {
  const auto [model, values, notes, provenance] = inserted(conv_with_bias());
  EXPECT_EQ(elements<std::int8_t>(tensor(model, "w_quantized")), (std::vector<std::int8_t>{127, -127}));
  EXPECT_EQ(elements<float>(tensor(model, "w_scale")),
            (std::vector<float>{static_cast<float>(1 / 127.0), static_cast<float>(4 / 127.0)}));
  EXPECT_EQ(elements<std::int8_t>(tensor(model, "w_zero_point")), (std::vector<std::int8_t>{0, 0}));
  EXPECT_EQ(tensor(model, "x_scale").dims, (std::vector<std::int64_t>{}));
  EXPECT_EQ(elements<std::uint8_t>(tensor(model, "x_zero_point")), (std::vector<std::uint8_t>{64}));
  // x scale 4/255: bias 0.5 / (4/255 * 1/127) = 4048.1, -0.25 / (4/255 * 4/127) = -506.0
  EXPECT_EQ(elements<std::int32_t>(tensor(model, "b_quantized")), (std::vector<std::int32_t>{4048, -506}));
  EXPECT_EQ(tensor(model, "b_quantized_scale").dims, (std::vector<std::int64_t>{2}));
  EXPECT_FLOAT_EQ(elements<float>(tensor(model, "b_quantized_scale")).at(1), static_cast<float>(4 / 255.0 * 4 / 127));
  EXPECT_EQ(tensor(model, "b_quantized_zero_point").type, onnx::DataType::int32);
}

TEST(Insert, ASharedBiasIsCopiedForEachReader) {
  Builder b;
  b.input("x")
      .constant("w", {2, 2, 1, 1}, {1, -1, 2, 2})
      .constant("v", {2, 2, 1, 1}, {8, 8, 4, 4})
      .constant("b", {2}, {0.5F, 0.25F});
  b.node("Conv", {"x", "w", "b"}, {"y"}).node("Conv", {"y", "v", "b"}, {"z"}).output("z");
  const auto model = inserted(b).model;
  expect_sound(model);
  const auto first = maker(model, "y").inputs().at(2);
  const auto second = maker(model, "z_QuantizeLinear_Input").inputs().at(2);
  EXPECT_NE(first, second);
  const auto stored = [&](const std::string& name) {
    return elements<std::int32_t>(tensor(model, maker(model, name).inputs().at(0)));
  };
  EXPECT_EQ(stored(first), (std::vector<std::int32_t>{4048, 1012}));  // scales 4/255 * 1/127 and 4/255 * 2/127
  EXPECT_EQ(stored(second), (std::vector<std::int32_t>{506, 506}));   // 4/255 * 8/127 and 4/255 * 4/127
  EXPECT_FALSE(has_tensor(model, "b"));
}

TEST(Insert, ABiasThatOtherNodesReadStaysForThem) {
  Builder b = conv_with_bias();
  b.input("i").type("i", onnx::DataType::undefined).node("Custom", {"b"}, {"t"}).output("t");
  const auto model = inserted(b).model;
  expect_sound(model);
  EXPECT_EQ(maker(model, "t").inputs(), (Names{"b"}));
  EXPECT_EQ(elements<float>(tensor(model, "b")), (std::vector<float>{0.5F, -0.25F}));
  EXPECT_NE(maker(model, "y_QuantizeLinear_Input").inputs().at(2), "b");
}

TEST(Insert, GemmBetaGoesIntoTheBias) {
  Builder b;
  b.input("x").constant("w", {1, 2}, {1.0F, 1.0F}).constant("b", {2}, {0.5F, 1.0F});
  b.node("Gemm", {"x", "w", "b"}, {"y"}, {Attribute::of_float("beta", 2.0F)}).output("y");
  const auto model = inserted(b).model;
  EXPECT_EQ(elements<std::int32_t>(tensor(model, "b_quantized")),
            (std::vector<std::int32_t>{8096, 16192}));  // 255 * 127 / 4 a unit
  EXPECT_EQ(maker(model, "y_QuantizeLinear_Input").float_or("beta", 1.0F), 1.0F);
}

TEST(Insert, NamesInUseAreLeftAlone) {
  Builder b = conv_with_bias();
  b.constant("x_scale", {2}, {7.0F, 8.0F})
      .node("Custom", {"x_scale"}, {"x_QuantizeLinear_Output"})
      .output("x_QuantizeLinear_Output");
  b.constant("w_quantized", {1}, {9.0F}).node("Custom", {"w_quantized"}, {"t"}).output("t");
  const auto [model, values, notes, provenance] = inserted(b);
  expect_sound(model);
  EXPECT_EQ(elements<float>(tensor(model, "x_scale")), (std::vector<float>{7.0F, 8.0F}));
  EXPECT_EQ(maker(model, "x_QuantizeLinear_Output").inputs(), (Names{"x_scale"}));
  EXPECT_EQ(maker(model, "t").inputs(), (Names{"w_quantized"}));
  const auto& conv = maker(model, "y_QuantizeLinear_Input");
  const auto& dequantize = maker(model, conv.inputs().at(0));
  EXPECT_EQ(elements<float>(tensor(model, dequantize.inputs().at(1))),
            (std::vector<float>{values.at("x").slices[0].scale}));
  EXPECT_EQ(maker(model, dequantize.inputs().at(0)).inputs().at(0), "x");
}

// An If whose branches return the captured value.
Attribute branch_reading(const std::string& name, const std::string& captured) {
  const auto field = [](char number, const std::string& bytes) {
    return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
  };
  const std::string node = field(1, captured) + field(2, "r") + field(4, "Identity");
  const std::string body = field(1, node) + field(2, "g") + field(12, field(1, "r"));
  std::string attribute = field(1, name) + field(6, body);
  attribute += {static_cast<char>('\xa0'), '\x01', '\x05'};  // type = GRAPH
  return Attribute(onnx::Wire::own(attribute));
}

TEST(Insert, ValuesThatBodiesReadKeepTheirNames) {
  Builder b = conv_with_bias();
  b.model.external = std::make_shared<onnx::ExternalFiles>(std::filesystem::path("."));
  b.input("p").type("p", onnx::DataType::boolean).node("Sigmoid", {"y"}, {"s"}).node("Sigmoid", {"s"}, {"u"});
  b.node("If", {"p"}, {"o"}, {branch_reading("then_branch", "s"), branch_reading("else_branch", "b")}).output("o");
  const auto model = inserted(b).model;
  expect_sound(model);
  EXPECT_TRUE(maker(model, "s").is("Sigmoid"));
  EXPECT_EQ(maker(model, "u").inputs(), (Names{"s_DequantizeLinear_Output"}));
  EXPECT_EQ(elements<float>(tensor(model, "b")), (std::vector<float>{0.5F, -0.25F}));
}

Builder conv_then(const char* op, Names inputs, bool as_output) {
  Builder b;
  b.input("x")
      .constant("w", {2, 1, 1, 1})
      .constant("one", {}, {1.0F})
      .constant("six", {}, {6.0F})
      .constant("zero", {}, {0.0F});
  b.node("Conv", {"x", "w"}, {"c"}).node(op, std::move(inputs), {"y"});
  if (as_output) return b.output("y"), b;
  return b.node("Sigmoid", {"y"}, {"z"}).output("z"), b;
}

bool keeps(const onnx::Model& model, const char* op) {
  return std::any_of(model.graph.nodes.begin(), model.graph.nodes.end(), [&](const auto& n) { return n.is(op); });
}

TEST(Insert, AReluThatTheIntegersImplyGoes) {
  for (const bool as_output : {false, true}) {
    const auto model = inserted(conv_then("Relu", {"c"}, as_output), {}, {{"y", {0, 5}}}).model;
    expect_sound(model);
    EXPECT_FALSE(keeps(model, "Relu"));
    const std::string made = as_output ? "y_QuantizeLinear_Input" : "y";
    EXPECT_TRUE(maker(model, made).is("Conv"));
    EXPECT_EQ(maker(model, "y_QuantizeLinear_Output").inputs().at(0), made);
  }
}

TEST(Insert, AnActivationThatTheIntegersDoNotImplyStays) {
  const auto with = [](const char* op, Names inputs, float high, const QuantConfig& options = {}) {
    const auto model = inserted(conv_then(op, std::move(inputs), false), options, {{"y", {0, high}}}).model;
    expect_sound(model);
    return keeps(model, op);
  };
  EXPECT_FALSE(with("Clip", {"c", "zero", "six"}, 6));
  EXPECT_TRUE(with("Clip", {"c", "one", "six"}, 6));    // 0 is representable, below the lower bound
  EXPECT_FALSE(with("Clip", {"c", "zero", "six"}, 4));  // integers end below the upper bound
  EXPECT_TRUE(
      with("Relu", {"c"}, 0, config([](auto& c) { c.activation_type = QuantType::int8; })));  // all zero: -128 to 127
  EXPECT_TRUE(with("Relu", {"c"}, 5, config([](auto& c) { c.activation_symmetric = true; })));
}

TEST(Insert, SharedScalesAreOneTensor) {
  Builder b = conv_with_bias();
  b.node("Reshape", {"y"}, {"r"}).node("Sigmoid", {"r"}, {"s"}).output("s");
  const auto model = inserted(b).model;
  expect_sound(model);
  EXPECT_EQ(maker(model, "r_QuantizeLinear_Output").inputs(), (Names{"r", "y_scale", "y_zero_point"}));
  EXPECT_FALSE(has_tensor(model, "r_scale"));
}

TEST(Insert, SixteenBitsTakeTheMicrosoftDomainBeforeOpset21) {
  const auto options = config([](auto& c) { c.activation_type = QuantType::uint16; });
  auto b = conv_with_bias();
  const auto old = inserted(b, options).model;
  EXPECT_EQ(maker(old, "x_QuantizeLinear_Output").domain(), "com.microsoft");
  EXPECT_EQ(old.opset("com.microsoft"), 1);
  EXPECT_EQ(elements<std::uint16_t>(tensor(old, "x_zero_point")), (std::vector<std::uint16_t>{16384}));
  b.model.set_opset("", 21);
  EXPECT_EQ(maker(inserted(b, options).model, "x_QuantizeLinear_Output").domain(), "");
}

TEST(Insert, FourBitWeightsTakeTheMicrosoftDomainBeforeOpset21) {
  for (const auto type : {QuantType::int4, QuantType::uint4}) {
    const auto options = config([&](auto& c) { c.weight_type = type; });
    auto b = conv_with_bias();
    const auto old = inserted(b, options).model;
    EXPECT_EQ(maker(old, "x_QuantizeLinear_Output").domain(), "com.microsoft");
    EXPECT_EQ(maker(old, "w_DequantizeLinear_Output").domain(), "com.microsoft");
    EXPECT_EQ(old.opset("com.microsoft"), 1);
    EXPECT_EQ(old.ir_version, 10);
    const auto& zero = tensor(old, "w_zero_point");
    EXPECT_EQ(tensor(old, "w_quantized").type, data_type(type));
    EXPECT_EQ(zero.type, data_type(type));
    EXPECT_EQ(zero.data.size(), onnx::byte_count(zero.type, zero.count()));
    const std::int64_t middle = type == QuantType::int4 ? 0 : 8;
    EXPECT_EQ(onnx::to_int64s(zero), std::vector<std::int64_t>(static_cast<std::size_t>(zero.count()), middle));
    EXPECT_EQ(tensor(old, "x_zero_point").type, onnx::DataType::uint8);
    b.model.set_opset("", 21);
    EXPECT_EQ(maker(inserted(b, options).model, "x_QuantizeLinear_Output").domain(), "");
  }
}

TEST(Insert, ABiasWhoseScaleWouldUnderflowStaysInFloat) {
  Builder b;
  b.input("x")
      .constant("w", {1, 1, 1, 1}, {1e-30F})
      .constant("b", {1}, {0.0F})
      .node("Conv", {"x", "w", "b"}, {"y"})
      .output("y");
  const auto [model, values, notes, provenance] = inserted(b, {}, {{"x", {0, 1e-10F}}});
  expect_sound(model);
  EXPECT_EQ(maker(model, "y_QuantizeLinear_Input").inputs().at(2), "b");
  EXPECT_TRUE(has_tensor(model, "b"));
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("underflow"), std::string::npos);
}

TEST(Insert, ForgetsTypesOfValuesThatAreGone) {
  Builder b = conv_then("Relu", {"c"}, true);
  b.model.graph.value_infos.push_back({"w", onnx::DataType::float32, {}, {}});
  b.model.graph.value_infos.push_back({"x", onnx::DataType::float32, {}, {}});
  const auto model = inserted(b, {}, {{"y", {0, 5}}}).model;
  ASSERT_EQ(model.graph.value_infos.size(), 1u);
  EXPECT_EQ(model.graph.value_infos[0].name, "x");
}

// Blocks along the contracted axis of a MatMul: scales in the shape that ONNX wants, and the attribute that says so.
TEST(Emit, WeightsInBlocks) {
  Builder b(21);
  b.input("x").constant("w", {5, 2}, {1, -10, 2, 20, 3, 30, 4, -40, 5, 50});
  b.node("MatMul", {"x", "w"}, {"y"}).output("y");
  auto placement = b.place();
  for (auto& mark : placement.marks) {
    if (mark.value == "w") mark.granularity = Granularity::blocks(0, 2);
  }
  auto proposals = testing::proposals({{"x", {-1, 3}}, {"y", {-1, 3}}});
  proposals.constants = scan_weights(b.model, placement, false);
  const auto emitted = emit_qdq({b.model}, assign(b.model, placement, proposals, {}));
  const auto& weight = emitted.provenance.values.at("w");
  EXPECT_EQ(tensor(emitted.model, weight.scale).dims, (std::vector<std::int64_t>{3, 2}));
  EXPECT_EQ(tensor(emitted.model, weight.zero_point).dims, (std::vector<std::int64_t>{3, 2}));
  const auto& dequantize = maker(emitted.model, weight.read_as);
  EXPECT_EQ(dequantize.int_or("axis", -7), 0);
  EXPECT_EQ(dequantize.int_or("block_size", -7), 2);
  const auto scales = elements<float>(tensor(emitted.model, weight.scale));
  EXPECT_EQ(scales, (std::vector<float>{2.0F / 127, 20.0F / 127, 4.0F / 127, 40.0F / 127, 5.0F / 127, 50.0F / 127}));
  EXPECT_EQ(elements<std::int8_t>(tensor(emitted.model, weight.stored)),
            (std::vector<std::int8_t>{64, -64, 127, 127, 95, 95, 127, -127, 127, 127}));
}

// ONNX Runtime would round inputs of 16 bits to 8 by an axis counted from the front, or by a scale without axes.
TEST(Emit, WeightsBesideInputsOf16BitsAreNotFused) {
  for (const bool wide : {true, false}) {
    for (const bool per_channel : {true, false}) {
      Builder b(21);
      b.input("x").constant("w", {5, 2}, {1, -10, 2, 20, 3, 30, 4, -40, 5, 50});
      b.node("MatMul", {"x", "w"}, {"y"}).output("y");
      QuantConfig config;
      config.activation_type = wide ? QuantType::uint16 : QuantType::uint8;
      config.per_channel = per_channel;
      const auto model = inserted(b, config, {{"x", {-1, 3}}, {"y", {-1, 3}}}).model;
      const auto& dequantize = maker(model, "w_DequantizeLinear_Output");
      EXPECT_EQ(dequantize.int_or("axis", -7), per_channel ? (wide ? -1 : 1) : -7);
      const auto& scale = tensor(model, "w_scale").dims;
      EXPECT_EQ(scale, tensor(model, "w_zero_point").dims);
      EXPECT_EQ(scale, per_channel ? std::vector<std::int64_t>{2} : std::vector<std::int64_t>(wide ? 1 : 0, 1));
    }
  }
}

// Values are found by the graph, whoever made the model and named its nodes.
TEST(DequantizedValues, FollowTheGraphAndNotNames) {
  Builder b;
  b.input("x").constant("s", {1}).constant("z", {1});
  b.node("Relu", {"x"}, {"y"}).node("Max", {"y"}, {"passed"});
  b.node("QuantizeLinear", {"x", "s", "z"}, {"one"}).node("DequantizeLinear", {"one", "s", "z"}, {"two"});
  b.node("QuantizeLinear", {"passed", "s", "z"}, {"three"}).node("DequantizeLinear", {"three", "s", "z"}, {"four"});
  b.node("Add", {"two", "four"}, {"out"}).output("out");
  const auto found = dequantized_values(b.model, graph::Index(b.model));
  EXPECT_EQ(found, (std::unordered_map<std::string, std::string>{{"x", "two"}, {"y", "four"}}));
}

// Where every part of the float model went, whatever names it got there.
TEST(Provenance, LeadsToWhatIsStoredUnderAnyName) {
  Builder b;
  b.input("x").constant("w", {2, 2, 1, 1}).constant("b", {2}).constant("w_quantized", {1}).constant("x_scale", {1});
  b.node("Conv", {"x", "w", "b"}, {"c"}).node("Relu", {"c"}, {"y"}).output("y");
  b.node("Add", {"y", "w_quantized"}, {"z"}).node("Mul", {"z", "x_scale"}, {"out"}).output("out");
  const auto result = inserted(b);
  const auto& weight = result.provenance.values.at("w");
  EXPECT_NE(weight.stored, "w_quantized");
  EXPECT_EQ(tensor(result.model, weight.stored).dims, (std::vector<std::int64_t>{2, 2, 1, 1}));
  EXPECT_EQ(tensor(result.model, weight.scale).count(), 2);
  const auto& input = result.provenance.values.at("x");
  EXPECT_NE(input.scale, "x_scale");
  const auto conv = result.provenance.nodes.at(0);
  ASSERT_TRUE(conv.has_value());
  EXPECT_EQ(result.model.graph.nodes[*conv].name(), "n_c");
  EXPECT_EQ(result.model.graph.nodes[*conv].inputs()[0], input.read_as);
  EXPECT_EQ(result.model.graph.nodes[*conv].inputs()[1], weight.read_as);
  EXPECT_EQ(tensor(result.model, result.provenance.biases.at(0).stored).type, onnx::DataType::int32);
}

TEST(Provenance, FollowsNodesPastBarriersAndKnowsThoseThatWereRemoved) {
  Builder b;
  b.input("x").constant("w", {1, 1, 1, 1}).node("Conv", {"x", "w"}, {"c"}).node("Relu", {"c"}, {"y"});
  b.constant("v", {1, 1, 1, 1}).node("Conv", {"y", "v"}, {"d"}).output("d");
  const auto result = inserted(b, {}, {{"y", {0, 5}}});
  EXPECT_FALSE(result.provenance.nodes.at(1).has_value());
  EXPECT_EQ(result.model.graph.nodes.at(*result.provenance.nodes.at(2)).name(), "n_d");
}

// What becomes of how many nodes is told in the same way, whoever placed it.
TEST(Placers, CountTheNodesOfEachForm) {
  Builder b;
  b.input("x").constant("w", {64, 64}).node("MatMul", {"x", "w"}, {"y"}).node("MatMul", {"y", "y"}, {"z"}).output("z");
  WeightsOnlyConfig in_blocks;
  in_blocks.enabled = true;
  const Placement placed[] = {place_dynamic(b.model, {}), place_blocks(b.model, {}, in_blocks),
                              place_floats(b.model, b.types, {.keep_io_types = false, .allowed = {true, false}})};
  for (const auto& placement : placed) {
    EXPECT_EQ(placement.quantized, 1U);
    EXPECT_EQ(placement.in_float, &placement == &placed[1] ? 0U : 1U);  // the other product has no weight for blocks
  }
  EXPECT_EQ(placed[0].selected, (std::vector<bool>{true, false}));
  EXPECT_EQ(placed[2].selected, (std::vector<bool>{true, false}));
}

// As docs/extending.md has it, "An output format".
TEST(Emitters, LeaveAloneWhatTheAssignmentDoesNotName) {
  using Emitter = Emitted (*)(FloatModel, const Assignment&);
  constexpr Emitter kAll[] = {emit_qdq, emit_dynamic, emit_blocks, emit_floats, emit_block_floats};
  constexpr Emitter kOfCache = emit_kv_cache;
  Builder b;
  b.input("x").constant("w", {2, 2}).node("MatMul", {"x", "w"}, {"y"}).output("y");
  Assignment assignment{.block_float = BlockFloat::bfp16};
  assignment.placement.selected.resize(1);
  for (const auto emit : kAll) {
    const auto model = emit({b.model, b.types}, assignment).model;
    ASSERT_EQ(model.graph.nodes.size(), 1U);
    EXPECT_EQ(model.graph.nodes[0].inputs(), (Names{"x", "w"}));
    EXPECT_EQ(model.graph.initializers.size(), 1U);
  }
  EXPECT_THROW(kOfCache({b.model}, assignment), Error);  // there is none
}

}  // namespace
}  // namespace detent::quantization
