// Activations in the forms that the runtime has kernels for: the same numbers, in fewer or faster operators.
#include "exec/support.h"
#include "graph/rewrites/rewrite.h"

namespace detent::exec::test {
namespace {

Model of(std::vector<Node> nodes, std::vector<onnx::Tensor> constants = {}, std::int64_t opset = 17) {
  return make_model(std::move(nodes), std::move(constants), opset, {value("x", {1, 4, 3, 3})},
                    {onnx::make_value_info("y", DataType::float32, std::nullopt)});
}

void expect_near(const Model& before, const Model& after) {
  const std::vector<Array> inputs{random_floats({1, 4, 3, 3}, 5)};
  const auto want = floats_of(run(before, inputs).front()), got = floats_of(run(after, inputs).front());
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-6F);
}

TEST(HardSwish, IsTakenApartAndComposed) {
  const auto whole = of({{"HardSwish", "s", {"x"}, {"y"}}});
  auto parts = whole;
  auto types = infer_value_types(runtime(), parts);
  graph::take_hard_swishes_apart(parts, types);
  EXPECT_EQ(op_types(parts), (Names{"HardSigmoid", "Mul"}));
  EXPECT_TRUE(types.contains(parts.graph.nodes[0].outputs()[0]));
  expect_near(whole, parts);
  graph::compose_hard_swishes(parts);
  EXPECT_EQ(op_types(parts), Names{"HardSwish"});
  expect_near(whole, parts);
}

TEST(HardSwish, IsNotComposedOfOtherParts) {
  const auto gate = [](float alpha, const Names& factors, const char* from = "x") {
    return std::vector<Node>{
        {"HardSigmoid", "g", {from}, {"g"}, {Attribute::of_float("alpha", alpha), Attribute::of_float("beta", 0.5F)}},
        {"Mul", "m", factors, {"y"}}};
  };
  auto seen = gate(1.0F / 6, {"x", "g"});
  seen.push_back({"Relu", "", {"g"}, {"z"}});
  for (auto nodes : {gate(0.2F, {"x", "g"}), gate(1.0F / 6, {"c", "g"}), seen}) {
    auto model = of(nodes, {floats("c", {1}, {2})});
    const auto before = op_types(model);
    graph::compose_hard_swishes(model);
    EXPECT_EQ(op_types(model), before);
  }
  auto old = of(gate(1.0F / 6, {"g", "x"}), {}, 13);  // has no such operator
  graph::compose_hard_swishes(old);
  EXPECT_EQ(op_types(old), (Names{"HardSigmoid", "Mul"}));
}

TEST(PRelu, WithOneSlopeBecomesLeakyRelu) {
  const auto uniform = of({{"PRelu", "p", {"x", "a"}, {"y"}}}, {floats("a", {4, 1, 1}, {0.2F, 0.2F, 0.2F, 0.2F})});
  auto after = uniform;
  graph::uniform_prelus(after);
  EXPECT_EQ(op_types(after), Names{"LeakyRelu"});
  expect_near(uniform, after);
  auto each = of({{"PRelu", "p", {"x", "a"}, {"y"}}}, {floats("a", {4, 1, 1}, {0.2F, 0.2F, 0.3F, 0.2F})});
  graph::uniform_prelus(each);
  EXPECT_EQ(op_types(each), Names{"PRelu"});
}

}  // namespace
}  // namespace detent::exec::test
