// Forms that the runtime runs fast: what is computed stays the same but for the order of roundings, and what others see
// of a model is left alone.
#include <cmath>
#include <limits>

#include "exec/support.h"

namespace detent::exec::test {
namespace {

onnx::TensorData keep(std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); }

onnx::ValueInfo untyped(const std::string& name) {
  return onnx::make_value_info(name, DataType::float32, std::nullopt);
}

Floats random(std::size_t count, unsigned seed) {
  return floats_of(random_floats({static_cast<std::int64_t>(count)}, seed));
}

Model rewritten(const Model& before) {
  Model after = before;
  auto types = infer_value_types(runtime(), after);
  graph::remove_neutral_arithmetic(after, types);
  graph::fold_after_products(after, types, keep);
  graph::compose_hard_sigmoids(after, types);
  graph::fold_before_products(after, types, keep);
  const auto probed = infer_value_types(runtime(), after);
  for (const auto& node : after.graph.nodes) {
    const auto& made = node.outputs().front();
    EXPECT_TRUE(types.contains(made) && types.at(made).type == probed.at(made).type) << made;
  }
  return after;
}

// Rewrites the model of one input into the wanted operators, which compute the same.
Model expect_same(const Model& before, const Names& want) {
  Model after = rewritten(before);
  EXPECT_EQ(op_types(after), want);
  std::vector<std::int64_t> shape;
  for (const auto& dim : before.graph.inputs[0].shape.value()) shape.push_back(dim.value);
  const std::vector<Array> inputs{random_floats(shape, 3)};
  const auto expected = run(before, inputs), got = run(after, inputs);
  for (std::size_t o = 0; o < expected.size(); ++o) {
    const auto a = floats_of(expected[o]), b = floats_of(got[o]);
    EXPECT_EQ(got[o].shape, expected[o].shape);
    float largest = 0;
    for (const float v : a) largest = std::max(largest, std::abs(v));
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 2e-6F * largest);
  }
  return after;
}

const std::vector<onnx::Tensor> kConstants{floats("w", {4, 4, 3, 3}, random(144, 1)),
                                           floats("w1", {4, 4, 1, 1}, random(16, 2)),
                                           floats("m", {4, 6}, random(24, 4)),
                                           floats("b", {4}, {0.1F, -0.2F, 3, 4}),
                                           floats("two", {}, {2}),
                                           floats("half", {1}, {0.5F}),
                                           floats("each", {4, 1, 1}, {1, -2, 0.5F, 3}),
                                           floats("every", {1, 4, 1, 1}, {5, 6, -7, 8}),
                                           floats("columns", {6}, random(6, 5)),
                                           floats("row", {1, 6}, random(6, 6)),
                                           floats("three", {1}, {3}),
                                           floats("zero", {}, {0}),
                                           floats("six", {}, {6}),
                                           floats("sixth", {}, {1.0F / 6}),
                                           floats("one", {1}, {1}),
                                           floats("pixels", {8}, random(8, 7))};

Model image(std::vector<Node> nodes, std::vector<onnx::ValueInfo> outputs = {untyped("y")}) {
  return make_model(std::move(nodes), kConstants, 17, {value("x", {1, 4, 8, 8})}, std::move(outputs));
}
Model matrix(std::vector<Node> nodes, const std::vector<std::int64_t>& shape = {5, 4}) {
  return make_model(std::move(nodes), kConstants, 17, {value("x", shape)}, {untyped("y")});
}

const Attribute kPads = Attribute::of_ints("pads", {1, 1, 1, 1});

TEST(FoldAfterProducts, ConvolutionsTakeFactorsAndSums) {
  for (const bool bias : {false, true}) {
    for (const auto* type : {"Conv", "ConvTranspose"}) {
      const Names inputs = bias ? Names{"x", "w", "b"} : Names{"x", "w"};
      expect_same(image({{type, "c", inputs, {"p"}, {kPads}},
                         {"Mul", "", {"two", "p"}, {"q"}},
                         {"Add", "", {"q", "each"}, {"r"}},
                         {"Div", "", {"r", "every"}, {"s"}},
                         {"Sub", "", {"s", "half"}, {"t"}},
                         {"Relu", "", {"t"}, {"y"}}}),
                  {type, "Relu"});
    }
  }
}

TEST(FoldAfterProducts, MatricesTakeThem) {
  expect_same(matrix({{"MatMul", "p", {"x", "m"}, {"p"}}, {"Add", "", {"p", "columns"}, {"y"}}}), {"Gemm"});
  expect_same(matrix({{"MatMul", "p", {"x", "m"}, {"p"}}, {"Mul", "", {"p", "row"}, {"y"}}}), {"MatMul"});
  expect_same(matrix({{"Gemm", "p", {"x", "m", "columns"}, {"p"}, {Attribute::of_float("alpha", 0.5F)}},
                      {"Mul", "", {"p", "two"}, {"q"}},
                      {"Add", "", {"q", "row"}, {"y"}}}),
              {"Gemm"});
  // There is no Gemm of batches.
  expect_same(
      matrix(
          {{"MatMul", "p", {"x", "m"}, {"p"}}, {"Mul", "", {"p", "half"}, {"q"}}, {"Add", "", {"q", "columns"}, {"y"}}},
          {2, 5, 4}),
      {"MatMul", "Add"});
}

TEST(FoldAfterProducts, LeavesAloneWhatOthersSee) {
  const Node conv{"Conv", "c", {"x", "w"}, {"p"}}, mul{"Mul", "", {"p", "two"}, {"y"}};
  expect_same(image({conv, mul, {"Relu", "", {"p"}, {"z"}}}, {untyped("y"), untyped("z")}), {"Conv", "Mul", "Relu"});
  expect_same(image({conv, mul}, {untyped("y"), untyped("p")}), {"Conv", "Mul"});
  expect_same(image({conv, mul, {"Conv", "d", {"x", "w"}, {"z"}}}, {untyped("y"), untyped("z")}),
              {"Conv", "Mul", "Conv"});
  // A constant for each column of pixels, and a quotient that is not finite.
  expect_same(image({{"Conv", "c", {"x", "w"}, {"p"}, {kPads}}, {"Mul", "", {"p", "pixels"}, {"y"}}}), {"Conv", "Mul"});
  const Model divided = rewritten(image({conv, {"Div", "", {"p", "zero"}, {"y"}}}));
  EXPECT_EQ(op_types(divided), (Names{"Conv", "Div"}));
}

TEST(FoldAfterProducts, LeavesAloneWhatABodyReads) {
  Model model =
      make_model({{"Conv", "c", {"x", "w"}, {"p"}}, {"Mul", "", {"p", "two"}, {"q"}}, if_node("c0", "p", "q", "y")},
                 kConstants, 17, {value("x", {1, 4, 8, 8}), value("c0", {}, DataType::boolean)}, {untyped("y")});
  EXPECT_EQ(op_types(rewritten(model)), (Names{"Conv", "Mul", "If"}));
}

TEST(FoldBeforeProducts, FactorsAndSums) {
  const auto relu = [](const std::string& to) { return Node("Relu", "", {"x"}, {to}); };
  // Without padding all becomes weight and bias, with it the sum stays.
  for (const auto& pads : {std::vector<Attribute>{}, std::vector{kPads}}) {
    expect_same(image({relu("a"),
                       {"Mul", "", {"a", "half"}, {"b0"}},
                       {"Add", "", {"b0", "two"}, {"c"}},
                       {"Conv", "p", {"c", "w", "b"}, {"y"}, pads},
                       {"Conv", "q", {"c", "w1"}, {"z"}}},
                      {untyped("y"), untyped("z")}),
                pads.empty() ? Names{"Relu", "Conv", "Conv"} : Names{"Relu", "Add", "Conv", "Conv"});
  }
  expect_same(image({relu("a"), {"Div", "", {"a", "three"}, {"c"}}, {"ConvTranspose", "p", {"c", "w"}, {"y"}}}),
              {"Relu", "ConvTranspose"});
  expect_same(matrix({relu("a"),
                      {"Sub", "", {"a", "half"}, {"c"}},
                      {"Mul", "", {"c", "three"}, {"d"}},
                      {"Gemm", "p", {"d", "m"}, {"y"}}}),
              {"Relu", "Gemm"});
}

TEST(FoldBeforeProducts, LeavesAloneWhatOthersSee) {
  expect_same(image({{"Mul", "", {"x", "two"}, {"a"}}, {"Conv", "p", {"a", "w"}, {"y"}}, {"Relu", "", {"a"}, {"z"}}},
                    {untyped("y"), untyped("z")}),
              {"Mul", "Conv", "Relu"});
  expect_same(image({{"Mul", "", {"x", "two"}, {"a"}}, {"Conv", "p", {"a", "w"}, {"y"}}}, {untyped("y"), untyped("a")}),
              {"Mul", "Conv"});
  // A model's mean of its input.
  expect_same(image({{"Sub", "", {"x", "two"}, {"a"}}, {"Conv", "p", {"a", "w1"}, {"y"}}}), {"Sub", "Conv"});
}

TEST(ComposeHardSigmoids, InAllOrders) {
  const std::vector<Node> clipped{{"Add", "", {"x", "three"}, {"s"}}, {"Clip", "", {"s", "zero", "six"}, {"c"}}};
  const auto with = [&](std::vector<Node> more) {
    more.insert(more.begin(), clipped.begin(), clipped.end());
    return image(std::move(more));
  };
  expect_same(with({{"Mul", "", {"x", "c"}, {"p"}}, {"Div", "", {"p", "six"}, {"y"}}}), {"HardSigmoid", "Mul"});
  expect_same(with({{"Mul", "", {"c", "x"}, {"p"}}, {"Mul", "", {"sixth", "p"}, {"y"}}}), {"HardSigmoid", "Mul"});
  expect_same(with({{"Div", "", {"c", "six"}, {"p"}}, {"Mul", "", {"x", "p"}, {"y"}}}), {"HardSigmoid", "Mul"});
  expect_same(with({{"Div", "", {"x", "six"}, {"p"}}, {"Mul", "", {"c", "p"}, {"y"}}}), {"HardSigmoid", "Mul"});
  expect_same(with({{"Mul", "", {"x", "c"}, {"p"}}, {"Div", "", {"p", "three"}, {"y"}}}),
              {"Add", "Clip", "Mul", "Div"});
}

TEST(RemoveNeutralSteps, ProductsWithOneAndSumsWithZero) {
  expect_same(image({{"Mul", "", {"x", "one"}, {"a"}},
                     {"Add", "", {"zero", "a"}, {"b0"}},
                     {"Relu", "", {"b0"}, {"c"}},
                     {"Div", "", {"c", "one"}, {"y"}}}),
              {"Relu", "Div"});
}

TEST(RemoveNeutralSteps, BoundsAtInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  auto before = image({{"Max", "", {"x", "least"}, {"a"}},
                       {"Min", "", {"most", "a"}, {"b0"}},
                       {"Max", "", {"b0", "most"}, {"c"}},
                       {"Max", "", {"c", "one"}, {"y"}}});
  for (const float bound : {-kInfinity, kInfinity}) {
    const float values[] = {bound};
    before.graph.initializers.push_back(
        onnx::make_tensor<float>(bound < 0 ? "least" : "most", DataType::float32, {1}, values));
  }
  const auto after = rewritten(before);
  EXPECT_EQ(op_types(after), (Names{"Max", "Max"}));
}

}  // namespace
}  // namespace detent::exec::test
