#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "base/error.h"
#include "checking/diagnosis.h"
#include "onnx/write.h"

namespace detent::checking {
namespace {

// Groups of a quantized model: where they end, what they read, and their order.

using Names = std::vector<std::string>;

class Groups : public ::testing::Test {
 protected:
  Groups() {
    model.path = "test.onnx";
    model.set_opset("", 17);
    const std::vector<float> scale{0.5F};
    const std::vector<std::uint8_t> zero{128};
    model.graph.initializers.push_back(
        onnx::make_tensor<float>("s", onnx::DataType::float32, {}, std::span<const float>(scale)));
    model.graph.initializers.push_back(
        onnx::make_tensor<std::uint8_t>("z", onnx::DataType::uint8, {}, std::span<const std::uint8_t>(zero)));
    model.graph.inputs.push_back(onnx::make_value_info("x", onnx::DataType::float32, {}));
  }
  void node(const std::string& op, Names in, Names out) {
    model.graph.nodes.emplace_back(op, "n_" + out.front(), std::move(in), std::move(out));
  }
  /// A pair: `value`.q and `value`.d.
  void pair(const std::string& value) {
    node("QuantizeLinear", {value, "s", "z"}, {value + ".q"});
    node("DequantizeLinear", {value + ".q", "s", "z"}, {value + ".d"});
  }
  void output(const std::string& name) {
    model.graph.outputs.push_back(onnx::make_value_info(name, onnx::DataType::float32, {}));
  }
  std::vector<Group> groups() {
    index.emplace(model);
    return groups_of(model, *index);
  }
  Names names(const Group& group) const {
    Names all;
    for (const int n : group.nodes) all.push_back(model.graph.nodes[static_cast<std::size_t>(n)].outputs()[0]);
    return all;
  }

  onnx::Model model;
  std::optional<graph::Index> index;
};

TEST_F(Groups, EndAtQuantizedValuesAndHaveTheirOwnDequantizeLinear) {
  pair("x");
  node("Relu", {"x.d"}, {"a"});
  node("Neg", {"a"}, {"b"});
  pair("b");
  node("Abs", {"x.d"}, {"c"});
  node("Add", {"b.d", "c"}, {"y"});
  output("y");
  const auto all = groups();
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(names(all[0]), Names{"x.q"});
  EXPECT_EQ(names(all[1]), (Names{"x.d", "a", "b", "b.q"}));
  EXPECT_EQ(all[1].inputs, Names{"x.q"});
  EXPECT_EQ(all[1].outputs, Names{"b.q"});
  EXPECT_EQ(names(all[2]), (Names{"x.d", "b.d", "c", "y"}));
  EXPECT_EQ(all[2].inputs, (Names{"x.q", "b.q"}));
  EXPECT_EQ(all[2].outputs, Names{"y"});
}

// The sum reads a float value around a quantized branch, so that both sides of the branch cannot be one group.
TEST_F(Groups, OfAFloatBranchAroundAQuantizedOneHaveAnOrder) {
  node("Relu", {"x"}, {"f"});
  pair("f");
  node("Neg", {"f.d"}, {"g"});
  pair("g");
  node("Add", {"f", "g.d"}, {"y"});
  output("y");
  const auto all = groups();
  ASSERT_EQ(all.size(), 4U);
  EXPECT_EQ(all[0].outputs, Names{"f"});
  EXPECT_EQ(all[3].inputs, (Names{"g.q", "f"}));
  std::set<std::string> known{"x"};
  for (const auto& group : all) {
    for (const auto& name : group.inputs) EXPECT_TRUE(known.contains(name)) << name;
    known.insert(group.outputs.begin(), group.outputs.end());
  }
}

// What is read several times within one group alone does not end it: decomposed operators stay whole.
TEST_F(Groups, HoldWhatIsReadWithinThemAlone) {
  node("Relu", {"x"}, {"a"});
  node("Neg", {"a"}, {"b"});
  node("Abs", {"a"}, {"c"});
  node("Add", {"b", "c"}, {"d"});
  pair("d");
  output("d.d");
  const auto all = groups();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(names(all[0]), (Names{"a", "b", "c", "d", "d.q"}));
  EXPECT_EQ(names(all[1]), Names{"d.d"});
}

TEST_F(Groups, LeaveOutWhatNothingReads) {
  node("Relu", {"x"}, {"unread"});
  node("Neg", {"x"}, {"y"});
  output("y");
  const auto all = groups();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(names(all[0]), Names{"y"});
}

TEST_F(Groups, BecomeModelsWithTheConstantsThatTheyRead) {
  pair("x");
  node("Relu", {"x.d"}, {"y"});
  output("y");
  const auto all = groups();
  graph::ValueTypes types{{"x.q", {onnx::DataType::uint8, std::vector<onnx::Dim>{{2, ""}, {-1, "N"}}}},
                          {"y", {onnx::DataType::float32, {}}}};
  const GroupModels models(model, *index, types);
  const auto part = models.model(all.back());
  ASSERT_EQ(part.graph.inputs.size(), 1U);
  EXPECT_EQ(part.graph.inputs[0].name, "x.q");
  EXPECT_EQ(part.graph.inputs[0].type, onnx::DataType::uint8);
  EXPECT_EQ(part.graph.inputs[0].shape->size(), 2U);
  EXPECT_EQ(part.graph.nodes.size(), 2U);
  EXPECT_EQ(part.graph.initializers.size(), 2U);
  EXPECT_EQ(part.opset(), 17);
}

// Differences in steps, of integers and of floats.

template <class T>
data::Array array(onnx::DataType type, const std::vector<T>& values) {
  const auto held = std::make_shared<std::vector<T>>(values);
  return {type, {static_cast<std::int64_t>(values.size())}, std::as_bytes(std::span<const T>(*held)), held};
}

TEST(Differences, OfIntegersAreSteps) {
  Differences d;
  d.add(array<std::uint8_t>(onnx::DataType::uint8, {0, 255, 7, 7}),
        array<std::uint8_t>(onnx::DataType::uint8, {255, 255, 8, 7}), 1, "v");
  EXPECT_EQ(d.max_steps, 255);
  EXPECT_EQ(d.share(), 0.5);
  EXPECT_EQ(d.share_over_one(), 0.25);
  d.add(array<std::int16_t>(onnx::DataType::int16, {-32768}), array<std::int16_t>(onnx::DataType::int16, {32767}), 1,
        "v");
  EXPECT_EQ(d.max_steps, 65535);
  EXPECT_EQ(d.elements, 5U);
}

TEST(Differences, OfFloatsCountFromAStepOn) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  Differences d;
  d.add(array<float>(onnx::DataType::float32, {1, 2, kNan, kInf}),
        array<float>(onnx::DataType::float32, {1.25F, 3, kNan, kInf}), 0.5, "v");
  EXPECT_EQ(d.max_steps, 2);
  EXPECT_EQ(d.share(), 0.25);
  d.add(array<float>(onnx::DataType::float32, {1}), array<float>(onnx::DataType::float32, {kNan}), 0.5, "v");
  EXPECT_TRUE(std::isinf(d.max_steps));
}

TEST(Differences, NeedTheSameTypesAndShapes) {
  Differences d;
  const auto x = array<std::uint8_t>(onnx::DataType::uint8, {1}),
             y = array<std::uint8_t>(onnx::DataType::uint8, {1, 2});
  EXPECT_THROW(d.add(x, y, 1, "v"), Error);
  EXPECT_THROW(d.add(x, array<std::int8_t>(onnx::DataType::int8, {1}), 1, "v"), Error);
}

}  // namespace
}  // namespace detent::checking
