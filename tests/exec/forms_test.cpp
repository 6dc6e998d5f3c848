#include <cmath>
#include <limits>

#include "exec/support.h"
#include "exec/sweep.h"

namespace detent::exec::test {
namespace {

// Forms that the runtime runs fast: what is computed stays the same but for the order of roundings, and what others see
// of a model is left alone.

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

// What the HTP computes wrongly, in other forms: the runtime computes the same.

const graph::Store kInMemory = [](std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); };

ValueTypes types_of(const Model& model) { return infer_value_types(runtime(), model); }

std::vector<std::string> operators(const Model& model) {
  std::vector<std::string> types;
  for (const auto& node : model.graph.nodes) types.push_back(node.op_type());
  return types;
}

void expect_same_output(const Model& before, const Model& after, const Array& x) {
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
  expect_same_output(before, after, array_of<float>(DataType::float32, {3}, {0.01F, -2, 300}));
}

TEST(FormsOfHtp, SquaresAreProducts) {
  for (const float exponent : {2.0F, 3.0F}) {
    const auto before = make_model({{"Pow", "p", {"x", "e"}, {"y"}}}, {floats("e", {}, {exponent})}, 17,
                                   {value("x", {3})}, {value("y", {3})});
    auto after = before;
    EXPECT_EQ(graph::squares_to_mul(after).size(), exponent == 2 ? 1U : 0U);
    EXPECT_EQ(operators(after), (Names{exponent == 2 ? "Mul" : "Pow"}));
    expect_same_output(before, after, array_of<float>(DataType::float32, {3}, {0.5F, -2, 3}));
  }
}

TEST(FormsOfHtp, InstanceNormsAreLayerNorms) {
  for (const auto& shape : std::vector<std::vector<std::int64_t>>{{2, 2, 5}, {1, 2, 3, 4}, {1, 2, 2, 2, 3}}) {
    const auto before = normalized(shape, {1.5F, -2}, {0.25F, 3});
    auto after = before;
    EXPECT_EQ(graph::rewrite_for_htp(after, types_of(after), kInMemory).size(), 1U);
    EXPECT_EQ(operators(after), (Names{"Reshape", "LayerNormalization", "Mul", "Add", "Reshape"}));
    expect_same_output(before, after, random_floats(shape));
  }
  const auto groups = normalized({1, 2, 6}, {1, 1}, {0, 0});  // as torch exports a GroupNorm
  auto after = groups;
  graph::rewrite_for_htp(after, types_of(after), kInMemory);
  EXPECT_EQ(operators(after), (Names{"Reshape", "LayerNormalization", "Reshape"}));
  expect_same_output(groups, after, random_floats({1, 2, 6}));
}

TEST(FormsOfHtp, LayerNormsHaveABias) {
  const auto before = make_model({{"LayerNormalization", "n", {"x", "s"}, {"y"}}}, {floats("s", {3}, {1, 2, 3})}, 17,
                                 {value("x", {2, 3})}, {value("y", {2, 3})});
  auto after = before;
  EXPECT_TRUE(graph::rewrite_for_htp(after, types_of(after), kInMemory).empty());
  EXPECT_EQ(after.graph.nodes[0].inputs().size(), 3U);
  expect_same_output(before, after, random_floats({2, 3}));
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
  expect_same_output(before, after, random_floats({2, 3}));
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
  expect_same_output(before, after, random_floats({1, 3}));
}

// A row gives the same bits alone as among others, and nearly those that the runtime gives without the rewrite.

constexpr std::int64_t kRows = 4, kDepth = 517, kWidth = 65;  // odd, and long enough for sums to differ by their order

onnx::ValueInfo with_batch(const std::string& name, std::vector<std::int64_t> dims) {
  std::vector<onnx::Dim> shape{{-1, "N"}};
  for (const auto d : dims) shape.push_back({d, ""});
  return onnx::make_value_info(name, DataType::float32, shape);
}
onnx::ValueInfo unknown_rank(const std::string& name) {
  return onnx::make_value_info(name, DataType::float32, std::nullopt);
}
Attribute number(const std::string& name, float value) { return Attribute::of_float(name, value); }
Attribute integer(const std::string& name, std::int64_t value) { return Attribute::of_int(name, value); }

onnx::Tensor weights(const std::string& name, const std::vector<std::int64_t>& dims, unsigned seed = 2) {
  return floats(name, dims, floats_of(random_floats(dims, seed)));
}

Model invariant(const Model& model) {
  Model changed = model;
  make_batch_invariant(changed, infer_value_types(runtime(), model));
  return changed;
}

// By one thread: several cut a product by its size, and sum otherwise where the depth is above 128.
Array product(const Model& model, const Array& x) {
  return run(model, {x}, {}, nullptr, {SessionMode::lean, 1, {}}).at(0);
}

Array row_of(const Array& batch, std::int64_t row) {
  const std::size_t size = batch.bytes.size() / static_cast<std::size_t>(batch.shape.front());
  Array one = batch;
  one.shape.front() = 1;
  one.bytes = batch.bytes.subspan(static_cast<std::size_t>(row) * size, size);
  return one;
}

void expect_close(const Array& found, const Array& expected) {
  ASSERT_EQ(found.shape, expected.shape);
  const Floats a = floats_of(found), b = floats_of(expected);
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 1e-4F * (std::sqrt(float{kDepth}) + std::abs(b[i])));
}

struct Case {
  std::string what;
  Model model;
  std::vector<std::int64_t> row;  // shape of x without the batch
};

Case gemm(const std::string& what, std::vector<Attribute> attributes, Names inputs, std::int64_t opset = 13) {
  const bool transposed = what.find("transB") != std::string::npos;
  const std::vector<std::int64_t> dims =
      transposed ? std::vector<std::int64_t>{kWidth, kDepth} : std::vector<std::int64_t>{kDepth, kWidth};
  return {what,
          make_model({{"Gemm", "g", std::move(inputs), {"y"}, std::move(attributes)}},
                     {weights("w", dims), weights("b", {kWidth}, 3), weights("s", {1}, 4)}, opset,
                     {with_batch("x", {kDepth})}, {with_batch("y", {kWidth})}),
          {kDepth}};
}

std::vector<Case> cases() {
  std::vector<Case> all{
      gemm("plain", {}, {"x", "w"}),
      gemm("left out", {}, {"x", "w", ""}),
      gemm("bias", {}, {"x", "w", "b"}),
      gemm("bias, opset 9", {}, {"x", "w", "b"}, 9),
      gemm("transB", {integer("transB", 1)}, {"x", "w"}),
      gemm("transB, bias", {integer("transB", 1)}, {"x", "w", "b"}),
      gemm("beta", {number("beta", 0.3F)}, {"x", "w", "b"}),
      gemm("beta below 0", {number("beta", -2), integer("transB", 0)}, {"x", "w", "b"}),
      gemm("transB, beta, scalar bias", {number("beta", 1.5F), integer("transB", 1)}, {"x", "w", "s"})};
  all.push_back({"MatMul",
                 make_model({{"MatMul", "m", {"x", "w"}, {"y"}}}, {weights("w", {kDepth, kWidth})}, 13,
                            {with_batch("x", {kDepth})}, {with_batch("y", {kWidth})}),
                 {kDepth}});
  // The rank is lost by a Reshape to a shape that is computed.
  all.push_back({"MatMul of unknown rank",
                 make_model({{"Shape", "", {"x"}, {"shape"}},
                             {"Slice", "", {"shape", "zero", "two"}, {"both"}},
                             {"Reshape", "", {"x", "both"}, {"a"}},
                             {"MatMul", "m", {"a", "w"}, {"y"}}},
                            {weights("w", {kDepth, kWidth}), ints("zero", {0}), ints("two", {2})}, 13,
                            {unknown_rank("x")}, {unknown_rank("y")}),
                 {kDepth}});
  all.push_back({"MatMul of what turns out to be of rank 4",
                 make_model({{"MatMul", "m", {"x", "w"}, {"y"}}}, {weights("w", {kDepth, kWidth})}, 13,
                            {unknown_rank("x")}, {unknown_rank("y")}),
                 {1, 1, kDepth}});
  return all;
}

TEST(BatchInvariant, ARowAloneIsARowAmongOthers) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.what);
    const Model changed = invariant(c.model);
    EXPECT_NE(op_types(changed), op_types(c.model));
    std::vector<std::int64_t> shape{kRows};
    shape.insert(shape.end(), c.row.begin(), c.row.end());
    const Array batch = random_floats(shape, 5);
    const Array together = product(changed, batch);
    expect_close(together, product(c.model, batch));
    for (std::int64_t row = 0; row < kRows; ++row) {
      const Array alone = product(changed, row_of(batch, row));
      EXPECT_EQ(alone.shape.front(), 1);
      EXPECT_TRUE(bytes_of(alone) == bytes_of(row_of(together, row))) << row;
    }
  }
}

TEST(BatchInvariant, OfUnknownRankKeepsEveryShape) {
  const Model model = make_model({{"MatMul", "m", {"x", "w"}, {"y"}}}, {weights("w", {kDepth, kWidth})}, 13,
                                 {unknown_rank("x")}, {unknown_rank("y")});
  const Model changed = invariant(model);
  const std::vector<std::vector<std::int64_t>> shapes{{kDepth},       {1, kDepth},       {3, kDepth},
                                                      {2, 3, kDepth}, {2, 1, 2, kDepth}, {0, kDepth}};
  for (const auto& shape : shapes) {
    SCOPED_TRACE(shape.size());
    const Array x = random_floats(shape, 6);
    expect_close(run(changed, {x}).at(0), run(model, {x}).at(0));
  }
}

TEST(BatchInvariant, NamesStay) {
  const auto c = gemm("bias", {}, {"x", "w", "b"});
  Model model = c.model;
  model.graph.nodes.push_back({"Relu", "r", {"y"}, {"z"}});
  model.graph.outputs.push_back(with_batch("z", {kWidth}));
  const Model changed = invariant(model);
  EXPECT_EQ(op_types(changed), (Names{"Gemm", "Neg", "Relu"}));
  EXPECT_EQ(changed.graph.nodes[0].name(), "g");
  EXPECT_EQ(changed.graph.nodes[1].outputs(), (Names{"y"}));
  // What is tapped is the product itself, not its negative.
  const Array batch = random_floats({kRows, kDepth}, 7);
  Recorder recorder;
  const auto outputs = run(changed, {batch}, tap({"y"}), &recorder);
  ASSERT_EQ(recorder.seen.size(), 1U);
  EXPECT_EQ(bytes_of(recorder.seen[0].second), bytes_of(outputs.at(0)));
  expect_close(outputs.at(0), run(model, {batch}).at(0));
}

TEST(BatchInvariant, LeavesAloneWhatHasSeveralRowsOrAFactor) {
  const auto unchanged = [](const Model& model) { EXPECT_EQ(op_types(invariant(model)), op_types(model)); };
  unchanged(make_model({{"MatMul", "m", {"x", "w"}, {"y"}}}, {weights("w", {kDepth, kWidth})}, 13,
                       {value("x", {3, kDepth})}, {value("y", {3, kWidth})}));
  unchanged(gemm("alpha", {number("alpha", 0.5F)}, {"x", "w"}).model);
  unchanged(make_model({{"Gemm", "g", {"x", "w"}, {"y"}, {integer("transA", 1)}}}, {weights("w", {3, kWidth})}, 13,
                       {with_batch("x", {1})}, {unknown_rank("y")}));
  unchanged(make_model({{"MatMul", "m", {"x", "x"}, {"y"}}}, {}, 13, {value("x", {2, 3, 3})}, {value("y", {2, 3, 3})}));
  unchanged(make_model({{"MatMul", "m", {"x", "w"}, {"y"}}},
                       {onnx::make_tensor<std::int32_t>("w", DataType::int32, {2, 1}, std::vector<std::int32_t>{1, 2})},
                       13, {value("x", {1, 2}, DataType::int32)}, {value("y", {1, 1}, DataType::int32)}));
}

TEST(BatchInvariant, AFixedSingleRowIsRewritten) {
  const Model model = make_model({{"MatMul", "m", {"x", "w"}, {"y"}}}, {weights("w", {kDepth, kWidth})}, 13,
                                 {value("x", {1, kDepth})}, {value("y", {1, kWidth})});
  const Model changed = invariant(model);
  EXPECT_EQ(op_types(changed), (Names{"FusedMatMul", "Neg"}));
  const Array x = random_floats({1, kDepth}, 8);
  expect_close(run(changed, {x}).at(0), run(model, {x}).at(0));
}

// Activations in the forms that the runtime has kernels for.

Model swish_model(std::vector<Node> nodes, std::vector<onnx::Tensor> constants = {}, std::int64_t opset = 17) {
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
  const auto whole = swish_model({{"HardSwish", "s", {"x"}, {"y"}}});
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
    auto model = swish_model(nodes, {floats("c", {1}, {2})});
    const auto before = op_types(model);
    graph::compose_hard_swishes(model);
    EXPECT_EQ(op_types(model), before);
  }
  auto old = swish_model(gate(1.0F / 6, {"g", "x"}), {}, 13);  // has no such operator
  graph::compose_hard_swishes(old);
  EXPECT_EQ(op_types(old), (Names{"HardSigmoid", "Mul"}));
}

TEST(PRelu, WithOneSlopeBecomesLeakyRelu) {
  const auto uniform =
      swish_model({{"PRelu", "p", {"x", "a"}, {"y"}}}, {floats("a", {4, 1, 1}, {0.2F, 0.2F, 0.2F, 0.2F})});
  auto after = uniform;
  graph::uniform_prelus(after);
  EXPECT_EQ(op_types(after), Names{"LeakyRelu"});
  expect_near(uniform, after);
  auto each = swish_model({{"PRelu", "p", {"x", "a"}, {"y"}}}, {floats("a", {4, 1, 1}, {0.2F, 0.2F, 0.3F, 0.2F})});
  graph::uniform_prelus(each);
  EXPECT_EQ(op_types(each), Names{"PRelu"});
}

Names written_fast(const Model& model) {
  auto after = model;
  auto types = infer_value_types(runtime(), after);
  graph::write_fast_activations(after, types);
  for (const auto& node : after.graph.nodes) EXPECT_TRUE(types.contains(node.outputs()[0])) << node.label();
  expect_near(model, after);
  return op_types(after);
}

TEST(FastActivations, AreTheSameFunctions) {
  const auto prelu = [](std::vector<float> slopes) {
    return swish_model({{"PRelu", "p", {"x", "a"}, {"y"}}}, {floats("a", {4, 1, 1}, slopes)});
  };
  EXPECT_EQ(written_fast(prelu({0.2F, -3, 1, 0.5F})), (Names{"Mul", "Max"}));
  EXPECT_EQ(written_fast(prelu({0.2F, 0, 1, 0.5F})), (Names{"Min", "Mul", "Relu", "Add"}));
  EXPECT_EQ(written_fast(prelu({0.2F, 2, 1, 0.5F})), (Names{"Min", "Mul", "Relu", "Add"}));
  const Names mish{"Min", "Exp", "Add", "Mul", "Add", "Div", "Mul"};
  EXPECT_EQ(written_fast(swish_model({{"Mish", "m", {"x"}, {"y"}}}, {}, 18)), mish);
  const std::vector<Node> parts{
      {"Softplus", "s", {"x"}, {"a"}}, {"Tanh", "t", {"a"}, {"b"}}, {"Mul", "m", {"b", "x"}, {"y"}}};
  EXPECT_EQ(written_fast(swish_model(parts)), mish);
  const auto of = [](const char* type, std::vector<Attribute> attributes) {
    return swish_model({{type, "e", {"x"}, {"y"}, std::move(attributes)}});
  };
  const auto alpha = [](float value) { return Attribute::of_float("alpha", value); };
  EXPECT_EQ(written_fast(of("Elu", {})), (Names{"Min", "Exp", "Sub", "Max"}));
  EXPECT_EQ(written_fast(of("Elu", {alpha(0.5F)})), (Names{"Min", "Exp", "Sub", "Mul", "Max"}));
  EXPECT_EQ(written_fast(of("Elu", {alpha(1.5F)})), (Names{"Min", "Exp", "Sub", "Mul", "Relu", "Add"}));
  EXPECT_EQ(written_fast(of("Elu", {alpha(-1)})), Names{"Elu"});
  EXPECT_EQ(written_fast(of("Celu", {alpha(2)})), (Names{"Min", "Div", "Exp", "Sub", "Mul", "Max"}));
  const Names selu{"Min", "Exp", "Sub", "Mul", "Relu", "Mul", "Add"};
  EXPECT_EQ(written_fast(of("Selu", {})), selu);
  EXPECT_EQ(written_fast(of("Selu", {alpha(3), Attribute::of_float("gamma", 0.5F)})), selu);
  // What others read stays.
  auto seen = parts;
  seen.push_back({"Relu", "r", {"b"}, {"z"}});
  EXPECT_EQ(written_fast(swish_model(seen)), (Names{"Softplus", "Tanh", "Mul", "Relu"}));
}

TEST(FastActivations, KeepInfinitiesAndLargeValues) {
  constexpr float kFar = std::numeric_limits<float>::infinity();
  std::vector<float> values(36, 3);
  const std::vector<float> rare{kFar, -kFar, 100, -100, 19, -30, 1e30F, -1e30F, 3, kFar, -kFar};
  std::copy(rare.begin(), rare.end(), values.begin());
  const Array x = array_of(DataType::float32, {1, 4, 3, 3}, values);
  for (auto model : {swish_model({{"Mish", "m", {"x"}, {"y"}}}, {}, 18), swish_model({{"Elu", "e", {"x"}, {"y"}}}),
                     swish_model({{"Selu", "e", {"x"}, {"y"}}}),
                     swish_model({{"PRelu", "p", {"x", "a"}, {"y"}}}, {floats("a", {4, 1, 1}, {0.2F, 0.3F, 1, 3})})}) {
    auto after = model;
    auto types = infer_value_types(runtime(), after);
    graph::write_fast_activations(after, types);
    const auto want = floats_of(run(model, {x}).front()), got = floats_of(run(after, {x}).front());
    for (std::size_t i = 0; i < want.size(); ++i) {
      const bool is_same = want[i] == got[i] || std::isnan(want[i]);
      EXPECT_TRUE(is_same || std::abs(got[i] - want[i]) < 1e-6F) << i << ": " << got[i];
    }
  }
}

}  // namespace
}  // namespace detent::exec::test
