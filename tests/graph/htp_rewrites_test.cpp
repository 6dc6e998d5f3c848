// What the HTP has other forms for: Gelu instead of Erf, convolutions instead of BatchNormalization.
#include <cmath>

#include "graph/support.h"

namespace detent::graph::test {
namespace {

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

}  // namespace
}  // namespace detent::graph::test
