// What the HTP computes wrongly, in other forms: the runtime computes the same.
#include "exec/support.h"

namespace detent::exec::test {
namespace {

const graph::Store kInMemory = [](std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); };

ValueTypes types_of(const Model& model) { return infer_value_types(runtime(), model); }

std::vector<std::string> operators(const Model& model) {
  std::vector<std::string> types;
  for (const auto& node : model.graph.nodes) types.push_back(node.op_type());
  return types;
}

void expect_same(const Model& before, const Model& after, const Array& x) {
  const auto want = floats_of(run(before, {x})[0]), got = floats_of(run(after, {x})[0]);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-5F) << i;
}

Model normalized(const std::vector<std::int64_t>& shape, Floats scale, Floats bias) {
  const auto channels = static_cast<std::int64_t>(scale.size());
  return make_model({{"InstanceNormalization", "n", {"x", "s", "b"}, {"y"}, {Attribute::of_float("epsilon", 1e-3F)}}},
                    {floats("s", {channels}, scale), floats("b", {channels}, bias)}, 17, {value("x", shape)},
                    {value("y", shape)});
}

TEST(FormsOfHtp, ReciprocalsAreDivisions) {
  const auto before = make_model({{"Reciprocal", "r", {"x"}, {"y"}}}, {}, 17, {value("x", {3})}, {value("y", {3})});
  auto after = before;
  EXPECT_EQ(graph::rewrite_for_htp(after, types_of(after), kInMemory).size(), 1U);
  EXPECT_EQ(operators(after), (Names{"Div"}));
  expect_same(before, after, array_of<float>(DataType::float32, {3}, {0.01F, -2, 300}));
}

TEST(FormsOfHtp, SquaresAreProducts) {
  for (const float exponent : {2.0F, 3.0F}) {
    const auto before = make_model({{"Pow", "p", {"x", "e"}, {"y"}}}, {floats("e", {}, {exponent})}, 17,
                                   {value("x", {3})}, {value("y", {3})});
    auto after = before;
    EXPECT_EQ(graph::squares_to_mul(after).size(), exponent == 2 ? 1U : 0U);
    EXPECT_EQ(operators(after), (Names{exponent == 2 ? "Mul" : "Pow"}));
    expect_same(before, after, array_of<float>(DataType::float32, {3}, {0.5F, -2, 3}));
  }
}

TEST(FormsOfHtp, InstanceNormsAreLayerNorms) {
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{2, 2, 5}, {1, 2, 3, 4}, {1, 2, 2, 2, 3}}) {
    const auto before = normalized(shape, {1.5F, -2}, {0.25F, 3});
    auto after = before;
    EXPECT_EQ(graph::rewrite_for_htp(after, types_of(after), kInMemory).size(), 1U);
    EXPECT_EQ(operators(after), (Names{"Reshape", "LayerNormalization", "Mul", "Add", "Reshape"}));
    expect_same(before, after, random_floats(shape));
  }
  const auto groups = normalized({1, 2, 6}, {1, 1}, {0, 0});  // as torch exports a GroupNorm
  auto after = groups;
  graph::rewrite_for_htp(after, types_of(after), kInMemory);
  EXPECT_EQ(operators(after), (Names{"Reshape", "LayerNormalization", "Reshape"}));
  expect_same(groups, after, random_floats({1, 2, 6}));
}

TEST(FormsOfHtp, LayerNormsHaveABias) {
  const auto before = make_model({{"LayerNormalization", "n", {"x", "s"}, {"y"}}}, {floats("s", {3}, {1, 2, 3})}, 17,
                                 {value("x", {2, 3})}, {value("y", {2, 3})});
  auto after = before;
  EXPECT_TRUE(graph::rewrite_for_htp(after, types_of(after), kInMemory).empty());
  EXPECT_EQ(after.graph.nodes[0].inputs().size(), 3U);
  expect_same(before, after, random_floats({2, 3}));
}

// As torch guards rows of a Softmax in which everything is masked.
Model guarded(const std::string& asked) {
  return make_model({{"Softmax", "s", {"x"}, {"s"}},
                     {"IsNaN", "q", {asked}, {"q"}},
                     {"Where", "w", {"q", "zero", "s"}, {"w"}},
                     {"Relu", "r", {"w"}, {"y"}}},
                    {floats("zero", {}, {0})}, 17, {value("x", {2, 3})}, {value("y", {2, 3})});
}

TEST(SoftmaxGuards, GoWhereTheyAskTheSameValue) {
  const auto before = guarded("s");
  auto after = before;
  EXPECT_EQ(graph::remove_softmax_guards(after).size(), 1U);
  EXPECT_EQ(operators(after), (Names{"Softmax", "Relu"}));
  EXPECT_TRUE(after.graph.initializers.empty());
  expect_same(before, after, random_floats({2, 3}));
  auto other = guarded("x");
  EXPECT_TRUE(graph::remove_softmax_guards(other).empty());
  EXPECT_EQ(other.graph.nodes.size(), 4U);
}

TEST(NeutralSteps, TensorsOfZerosAndOnesGoWhereTheyDoNotSpreadTheOther) {
  const auto before =
      make_model({{"Add", "a", {"x", "zeros"}, {"a"}},
                  {"Mul", "m", {"ones", "a"}, {"m"}},
                  {"Add", "wide", {"m", "rows"}, {"w"}},
                  {"Relu", "r", {"w"}, {"y"}}},
                 {floats("zeros", {1, 3}, {0, 0, 0}), floats("ones", {3}, {1, 1, 1}), floats("rows", {2, 1}, {0, 0})},
                 17, {value("x", {1, 3})}, {value("y", {2, 3})});
  auto after = before;
  EXPECT_EQ(graph::remove_neutral_arithmetic(after, types_of(after)).size(), 1U);
  EXPECT_EQ(operators(after), (Names{"Add", "Relu"}));
  expect_same(before, after, random_floats({1, 3}));
}

}  // namespace
}  // namespace detent::exec::test
