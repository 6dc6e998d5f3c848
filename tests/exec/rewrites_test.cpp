#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "exec/support.h"
#include "graph/constants.h"
#include "graph/patterns.h"
#include "graph/rewrites/product_forms.h"
#include "graph/rewrites/unfold.h"
#include "onnx/packed_numbers.h"
#include "onnx/write.h"

namespace detent::exec::test {
namespace {

// Every rewrite keeps the model's function: the runtime computes the same, before and after, on random input.

void expect_same_bits(const Model& before, const Model& after, const std::vector<Array>& inputs) {
  const auto want = run(before, inputs);
  const auto got = run(after, inputs);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].shape, want[i].shape);
    EXPECT_EQ(bytes_of(got[i]), bytes_of(want[i]));
  }
}

struct RewriteCase {
  std::string what;
  std::int64_t opset;
  std::vector<std::int64_t> shape;
  std::vector<Node> nodes;
  Names want;  // operators after the upgrade
  std::vector<onnx::Tensor> initializers = {};
};

onnx::ValueInfo untyped(const std::string& name, DataType type = DataType::float32) {
  return onnx::make_value_info(name, type, std::nullopt);
}
Attribute floats_attribute(const std::string& name, const Floats& values) {
  onnx::test::Msg m = onnx::test::attribute_head(name);
  for (const float v : values) m.fixed32(7, v);
  return Attribute(onnx::Wire::own(m.varint(20, 6).bytes));
}
Attribute i(const std::string& name, std::int64_t value) { return Attribute::of_int(name, value); }
Attribute list_of(const std::string& name, const std::vector<std::int64_t>& values) {
  return Attribute::of_ints(name, values);
}
Node one(const std::string& op, const std::vector<Attribute>& attributes, Names inputs = {"x"}, Names outputs = {"y"}) {
  return {op, "n", std::move(inputs), std::move(outputs), attributes};
}

std::vector<RewriteCase> cases() {
  const auto nearest = Attribute::of_string("mode", "nearest");
  const auto linear = Attribute::of_string("mode", "linear");
  std::vector<RewriteCase> all{
      {"Clip both",
       7,
       {3, 4},
       {one("Clip", {Attribute::of_float("min", -0.5F), Attribute::of_float("max", 0.25F)})},
       {"Clip"}},
      {"Clip max", 10, {3, 4}, {one("Clip", {Attribute::of_float("max", 0.25F)})}, {"Clip"}},
      {"Clip min", 8, {3, 4}, {one("Clip", {Attribute::of_float("min", 0.25F)})}, {"Clip"}},
      {"Clip none", 10, {3, 4}, {one("Clip", {})}, {"Clip"}},
      {"Pad constant",
       10,
       {2, 3},
       {one("Pad", {list_of("pads", {1, 0, 0, 2}), Attribute::of_float("value", 1.5F)})},
       {"Pad"}},
      {"Pad reflect",
       7,
       {4, 3},
       {one("Pad", {list_of("pads", {1, 0, 2, 1}), Attribute::of_string("mode", "reflect")})},
       {"Pad"}},
      {"Pad negative", 10, {4, 3}, {one("Pad", {list_of("pads", {-1, 0, 0, 1})})}, {"Pad"}},
      {"Slice", 9, {4, 5}, {one("Slice", {list_of("starts", {1, 0}), list_of("ends", {3, 1000})})}, {"Slice"}},
      {"Slice axes",
       7,
       {4, 5},
       {one("Slice", {list_of("starts", {-3}), list_of("ends", {-1}), list_of("axes", {1})})},
       {"Slice"}},
      {"TopK", 9, {3, 8}, {one("TopK", {i("k", 3), i("axis", -1)}, {"x"}, {"y", "indices"})}, {"TopK"}},
      {"Dropout", 7, {3}, {one("Dropout", {Attribute::of_float("ratio", 0.75F)})}, {"Dropout"}},
      {"Dropout 10",
       10,
       {3},
       {one("Dropout", {Attribute::of_float("ratio", 0.75F)}, {"x"}, {"y", "mask"})},
       {"Dropout"}},
      {"BatchNormalization",
       8,
       {2, 2, 3},
       {one("BatchNormalization", {i("spatial", 1)}, {"x", "s", "b", "m", "v"})},
       {"BatchNormalization"},
       {floats("s", {2}, {1, 2}), floats("b", {2}, {0.5F, 1}), floats("m", {2}, {0, 1}), floats("v", {2}, {1, 2})}},
      {"Upsample 7",
       7,
       {1, 2, 3, 3},
       {one("Upsample", {nearest, floats_attribute("scales", {1, 1, 2, 3})})},
       {"Resize"}},
      {"Upsample 9 linear",
       9,
       {1, 2, 3, 3},
       {one("Upsample", {linear}, {"x", "s"})},
       {"Resize"},
       {floats("s", {4}, {1, 1, 2, 2})}},
      {"Upsample by a fraction",
       9,
       {1, 1, 5, 5},
       {one("Upsample", {nearest}, {"x", "s"})},
       {"Resize"},
       {floats("s", {4}, {1, 1, 1.7F, 2.3F})}},
      {"Resize 10",
       10,
       {1, 2, 3, 3},
       {one("Resize", {nearest}, {"x", "s"})},
       {"Resize"},
       {floats("s", {4}, {1, 1, 2, 1.5F})}},
      {"Resize 10 down by 2",
       10,
       {1, 1, 8, 8},
       {one("Resize", {nearest}, {"x", "s"})},
       {"Resize"},
       {floats("s", {4}, {1, 1, 0.5F, 0.5F})}},
      {"Resize 10 down by a fraction",
       10,
       {1, 1, 9, 9},
       {one("Resize", {nearest}, {"x", "s"})},
       {"Resize"},
       {floats("s", {4}, {1, 1, 0.6F, 0.7F})}},
      {"Resize 10 by scales that are computed",
       10,
       {1, 1, 5, 5},
       {{"Neg", "", {"s"}, {"computed"}}, one("Resize", {nearest}, {"x", "computed"})},
       {"Neg", "Resize"},
       {floats("s", {4}, {-1, -1, -1.7F, -2.3F})}},
      {"Resize 10 linear down",
       10,
       {1, 1, 9, 9},
       {one("Resize", {linear}, {"x", "s"})},
       {"Resize"},
       {floats("s", {4}, {1, 1, 0.6F, 0.7F})}},
      {"Scatter",
       9,
       {3, 3},
       {one("Scatter", {i("axis", 1)}, {"x", "at", "u"})},
       {"ScatterElements"},
       {onnx::make_tensor<std::int64_t>("at", DataType::int64, {1, 2}, std::array<std::int64_t, 2>{2, 0}),
        floats("u", {1, 2}, {7, 8})}},
      {"Squeeze", 11, {1, 3, 1}, {one("Squeeze", {list_of("axes", {0, -1})})}, {"Squeeze"}},
      {"Squeeze all", 11, {1, 3, 1}, {one("Squeeze", {})}, {"Squeeze"}},
      {"Unsqueeze", 12, {3}, {one("Unsqueeze", {list_of("axes", {0, 2})})}, {"Unsqueeze"}},
      {"ReduceSum", 11, {3, 4, 2}, {one("ReduceSum", {list_of("axes", {1}), i("keepdims", 0)})}, {"ReduceSum"}},
      {"ReduceSum all", 7, {3, 4}, {one("ReduceSum", {})}, {"ReduceSum"}},
      {"Split", 11, {2, 5}, {one("Split", {list_of("split", {2, 3}), i("axis", 1)}, {"x"}, {"y", "z"})}, {"Split"}},
      {"Split evenly", 7, {4, 2}, {one("Split", {}, {"x"}, {"y", "z"})}, {"Split"}},
  };
  for (const auto* op : {"Softmax", "LogSoftmax", "Hardmax"}) {
    all.push_back({std::string(op) + " last", 11, {3, 4}, {one(op, {})}, {op}});
    all.push_back({std::string(op) + " last, negative", 12, {2, 3, 4}, {one(op, {i("axis", -1)})}, {op}});
    all.push_back({std::string(op) + " matrix", 7, {2, 3, 4}, {one(op, {})}, {"Shape", "Flatten", op, "Reshape"}});
    all.push_back(
        {std::string(op) + " whole", 9, {2, 3, 4}, {one(op, {i("axis", 0)})}, {"Shape", "Flatten", op, "Reshape"}});
    all.push_back({std::string(op) + " negative",
                   11,
                   {2, 3, 4},
                   {one(op, {i("axis", -2)})},
                   {"Shape", "Flatten", op, "Reshape"}});
  }
  return all;
}

TEST(UpgradeOpset, KeepsWhatIsComputed) {
  for (const RewriteCase& c : cases()) {
    SCOPED_TRACE(c.what);
    std::vector<onnx::ValueInfo> outputs{untyped("y")};
    const auto& made = c.nodes.back().outputs();
    if (made.size() > 1 && made[1] == "z") outputs.push_back(untyped("z"));
    if (made.size() > 1 && made[1] == "indices") outputs.push_back(untyped("indices", DataType::int64));
    const Model before = make_model(c.nodes, c.initializers, c.opset, {value("x", c.shape)}, outputs);
    for (const bool known : {true, false}) {  // with and without what the runtime inferred
      Model after = before;
      try {
        const auto notes = graph::upgrade_opset(after, known ? infer_value_types(runtime(), before) : ValueTypes());
        EXPECT_EQ(notes.size(), c.what.find("computed") == std::string::npos ? 1U : 2U);
        EXPECT_EQ(after.opset(), 13);
        if (known) {
          EXPECT_EQ(op_types(after), c.want);
        }
        expect_same_bits(before, after, {random_floats(c.shape)});
      } catch (const Error& e) {
        ADD_FAILURE() << e.what() << " " << e.hint();
      }
    }
  }
}

TEST(UpgradeOpset, LeavesNewerModelsAlone) {
  for (const std::int64_t opset : {13, 17, 21}) {
    Model model = make_model({one("Softmax", {})}, {}, opset);
    EXPECT_TRUE(graph::upgrade_opset(model, {}).empty());
    EXPECT_EQ(model.opset(), opset);
  }
}

TEST(UpgradeOpset, KeepsWhatIsComputedWithBlocks) {
  const std::vector<std::vector<Node>> cases{{one("ReduceMean", {Attribute::of_ints("axes", {1})})},
                                             {one("ReduceMax", {i("keepdims", 0)})},
                                             {one("Split", {i("axis", 1)}, {"x"}, {"y", "z"})},
                                             {one("Relu", {})}};
  for (const auto& nodes : cases) {
    for (const std::int64_t opset : {11, 13, 17}) {
      SCOPED_TRACE(fmt::format("{} of opset {}", nodes.front().op_type(), opset));
      const Model before = make_model(nodes, {}, opset, {value("x", {4, 6})}, {untyped("y")});
      Model after = before;
      const auto notes = graph::upgrade_opset(after, {}, 21);
      ASSERT_EQ(notes.size(), 1U);
      EXPECT_EQ(after.opset(), 21);
      EXPECT_EQ(after.ir_version, 10);
      expect_same_bits(before, after, {random_floats({4, 6})});
    }
  }
  Model refused = make_model({one("GroupNormalization", {}, {"x", "w", "w"})}, {floats("w", {1}, {1})}, 18);
  expect_error([&] { graph::upgrade_opset(refused, {}, 21); }, "scale and bias changed");
}

TEST(UpgradeOpset, RefusesWhatItCannotKeep) {
  const auto refuses = [](const std::vector<Node>& nodes, std::int64_t opset, const std::string& part,
                          const std::vector<onnx::Tensor>& tensors = {}) {
    Model model = make_model(nodes, tensors, opset);
    expect_error([&] { graph::upgrade_opset(model, {}); }, part);
  };
  refuses({one("Relu", {})}, 6, "the oldest that detent reads is 7");
  refuses({one("Dropout", {}, {"x"}, {"a", "mask"}), {"Add", "", {"a", "mask"}, {"y"}}}, 9, "its mask is used");
  refuses({one("BatchNormalization", {i("spatial", 0)}, {"x", "w", "w", "w", "w"})}, 8, "spatial=0",
          {floats("w", {1}, {1})});
  refuses({one("Scan", {})}, 8, "Scan changed");
  refuses({one("Slice", {})}, 9, "'starts' and 'ends' are missing");
  refuses({one("Pad", {})}, 9, "'pads' is missing");
  refuses({one("TopK", {})}, 9, "'k' is missing");
  refuses({one("Upsample", {})}, 7, "no scales");
  refuses({one("Resize", {Attribute::of_string("mode", "nearest")}, {"x", "s"})}, 10, "one axis and shrinks another",
          {floats("s", {2}, {0.3F, 1.3F})});
  const Attribute inside = body("then_branch", {Node("Squeeze", "", {"x"}, {"s"})}, {value("s")});
  refuses({{"If", "choose", {"x"}, {"y"}, {inside}}}, 11, "its body holds Squeeze");
  Model fine = make_model({{"If", "choose", {"x"}, {"y"}, {inside}}}, {}, 13);
  EXPECT_NO_THROW(graph::upgrade_opset(fine, {}));
}

onnx::TensorData keep(std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); }

TEST(FoldBatchNorm, KeepsWhatIsComputed) {
  for (const bool transposed : {false, true}) {
    for (const bool bias : {false, true}) {
      const auto weight = floats_of(random_floats({4, 4, 3, 3}, 5));
      Names conv_inputs{"x", "w"};
      if (bias) conv_inputs.push_back("b");
      const Model before = make_model({{transposed ? "ConvTranspose" : "Conv", "conv", conv_inputs, {"c"}},
                                       {"BatchNormalization", "bn", {"c", "s", "h", "m", "v"}, {"n"}},
                                       {"Relu", "", {"n"}, {"y"}}},
                                      {floats("w", {4, 4, 3, 3}, weight), floats("b", {4}, {0.1F, 0.2F, -3, 4}),
                                       floats("s", {4}, {1, 0.5F, -2, 0.01F}), floats("h", {4}, {0, 1, 2, -1}),
                                       floats("m", {4}, {0.3F, 0, -1, 2}), floats("v", {4}, {1, 0.2F, 3, 0.04F})},
                                      13, {value("x", {1, 4, 8, 8})}, {untyped("y")});
      Model after = before;
      graph::fold_batch_norm(after, keep);
      EXPECT_EQ(after.graph.nodes.size(), 2U);
      const std::vector<Array> inputs{random_floats({1, 4, 8, 8})};
      const auto want = floats_of(run(before, inputs)[0]);
      const auto got = floats_of(run(after, inputs)[0]);
      ASSERT_EQ(got.size(), want.size());
      for (std::size_t n = 0; n < got.size(); ++n)
        ASSERT_NEAR(got[n], want[n], 1e-5F * std::max(1.0F, std::abs(want[n])));
    }
  }
}

TEST(Preparation, KeepsWhatIsComputed) {
  // Constant, Identity and Dropout nodes and constants to compute, out of order, with a body that captures.
  const Attribute two = Attribute::of_float("value_float", 2);
  const Model before = make_model({{"Mul", "", {"d", "k"}, {"e"}},
                                   {"Dropout", "", {"i"}, {"d"}},
                                   {"Identity", "", {"x"}, {"i"}},
                                   {"Constant", "", {}, {"t"}, {two}},
                                   {"Mul", "", {"t", "w"}, {"k"}},
                                   if_node("c", "e", "k", "z"),
                                   {"Identity", "", {"z"}, {"y"}}},
                                  {floats("w", {2}, {3, 4})}, 13, {value("x"), value("c", {}, DataType::boolean)});
  Model after = before;
  graph::lift_constants(after);
  graph::sort_topologically(after);
  graph::remove_identities(after);
  const auto nodes = graph::constant_nodes(after, infer_value_types(runtime(), after));
  EXPECT_EQ(nodes.size(), 1U);
  graph::replace_by_constants(after, nodes, compute_constants(runtime(), after, nodes));
  EXPECT_EQ(op_types(after), (Names{"Mul", "If", "Identity"}));
  Model sorted = before;
  graph::sort_topologically(sorted);
  for (const bool branch : {true, false}) expect_same_bits(sorted, after, {random_floats({2}), boolean(branch)});
}

// Rewrites of what exporters compute from shapes and spell with letters: the runtime computes the same.

constexpr float kLowest = std::numeric_limits<float>::lowest();

const graph::Store kInMemory = [](std::vector<std::byte> bytes) { return onnx::TensorData::owned(std::move(bytes)); };

Attribute filled_with(float number) {
  const auto tensor = onnx::make_tensor<float>("", DataType::float32, {1}, std::vector{number});
  return Attribute::of_messages("value", Attribute::Kind::t, {onnx::encode_tensor(tensor)});
}

void expect_near(const Model& before, const Model& after, const std::vector<Array>& inputs) {
  const auto want = floats_of(run(before, inputs)[0]), got = floats_of(run(after, inputs)[0]);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-5F);
}

// A mask m of a computed shape over scores of [4, 4]; `between` makes it of what is filled, f.
struct Spelling {
  std::string what;
  std::vector<Node> between;
};

std::vector<Spelling> spellings() {
  const auto to_float = Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32));
  const Node choice{"Cast", "", {"later"}, {"c"}, {to_float}};
  return {{"as it is", {{"Max", "", {"f"}, {"m"}}}},
          {"a triangle", {{"Trilu", "", {"f", "one"}, {"m"}}}},
          {"cast and expanded", {{"Cast", "", {"f"}, {"g"}, {to_float}}, {"Expand", "", {"g", "shape"}, {"m"}}}},
          {"chosen", {{"Where", "", {"later", "f", "zero"}, {"m"}}}},
          {"times 0 and 1", {choice, {"Mul", "", {"f", "c"}, {"m"}}}},
          {"a triangle times 0 and 1", {choice, {"Trilu", "", {"f", "one"}, {"g"}}, {"Mul", "", {"c", "g"}, {"m"}}}},
          {"joined",
           {{"Slice", "", {"f", "first", "half"}, {"g"}},
            {"Slice", "", {"zeros", "first", "half"}, {"h"}},
            {"Concat", "", {"g", "h"}, {"m"}, {Attribute::of_int("axis", 0)}}}},
          {"scattered", {{"Gather", "", {"f", "none"}, {"row"}}, {"ScatterND", "", {"zeros", "at", "row"}, {"m"}}}}};
}

Model masked(const Spelling& spelling) {
  std::vector<Node> nodes{{"Shape", "", {"x"}, {"s"}}, {"ConstantOfShape", "", {"s"}, {"f"}, {filled_with(kLowest)}}};
  nodes.insert(nodes.end(), spelling.between.begin(), spelling.between.end());
  nodes.emplace_back("Add", "", Names{"x", "m"}, Names{"masked"});
  nodes.emplace_back("Softmax", "", Names{"masked"}, Names{"y"});
  auto later = ints("later_", std::vector<std::int64_t>{0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0});
  later.dims = {4, 4};
  nodes.insert(
      nodes.begin(),
      {"Cast", "", {"later_"}, {"later"}, {Attribute::of_int("to", static_cast<std::int64_t>(DataType::boolean))}});
  auto one = ints("one", {1});
  one.dims = {};
  auto at = ints("at", {2});
  at.dims = {1, 1};
  return make_model(nodes,
                    {later, one, at, ints("none", {0}), ints("shape", {4, 4}), ints("first", {0}), ints("half", {2}),
                     floats("zero", {1}, {0}), floats("zeros", {4, 4}, Floats(16))},
                    17, {value("x", {4, 4})}, {value("y", {4, 4})});
}

TEST(MasksOfComputedShapes, EndWhereASoftmaxGivesZero) {
  for (const auto& spelling : spellings()) {
    SCOPED_TRACE(spelling.what);
    const Model before = masked(spelling);
    Model after = before;
    EXPECT_EQ(graph::clamp_masks(after, kInMemory).size(), 1U);
    for (const auto& node : after.graph.nodes) {
      if (!node.is("ConstantOfShape")) continue;
      EXPECT_EQ(graph::constant_of_shape_value(after, node), graph::kMask);
    }
    const std::vector<Array> x{random_floats({4, 4})};
    const auto want = floats_of(run(before, x)[0]), got = floats_of(run(after, x)[0]);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto* row = &want[i / 4 * 4];
      const bool is_masked_whole = std::count(row, row + 4, 0.25F) == 4;
      EXPECT_NEAR(is_masked_whole ? want[i] : got[i], want[i], 1e-5F);
    }
  }
}

// Lowest or infinite floats of other types, which a Cast brings to the scores.
TEST(MasksOfOtherFloats, EndWhereASoftmaxGivesZero) {
  const Attribute to_float = Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32));
  const std::vector<std::uint16_t> half{0, onnx::to_float16(-65504)}, brain{0, onnx::to_bfloat16(kLowest)};
  const std::vector<double> wide{0, -std::numeric_limits<double>::infinity()};
  struct Case {
    onnx::Tensor constant;
    double lowest;
  };
  const Case cases[] = {
      {onnx::make_tensor<std::uint16_t>("low", DataType::float16, {2}, half), graph::kMask},
      {onnx::make_tensor<std::uint16_t>("low", DataType::bfloat16, {2}, brain), -9984},  // the nearest
      {onnx::make_tensor<double>("low", DataType::float64, {2}, wide), graph::kMask}};
  for (const auto& [constant, lowest] : cases) {
    SCOPED_TRACE(static_cast<int>(constant.type));
    const Model before = make_model({{"Cast", "", {"low"}, {"m"}, {to_float}},
                                     {"Add", "", {"x", "m"}, {"masked"}},
                                     {"Softmax", "", {"masked"}, {"y"}}},
                                    {constant}, 17, {value("x", {4, 2})}, {value("y", {4, 2})});
    Model after = before;
    EXPECT_EQ(graph::clamp_masks(after, kInMemory).size(), 1U);
    EXPECT_EQ(after.graph.initializers[0].type, constant.type);
    EXPECT_EQ(onnx::to_doubles(after.graph.initializers[0]), (std::vector<double>{0, lowest}));
    expect_near(before, after, {random_floats({4, 2})});
  }
}

TEST(MasksOfOtherFloats, EndWhereTheyAreFilledWhileTheModelRuns) {
  const Attribute to_float = Attribute::of_int("to", static_cast<std::int64_t>(DataType::float32));
  const auto number =
      onnx::make_tensor<std::uint16_t>("", DataType::float16, {1}, std::vector{onnx::to_float16(-65504)});
  const auto filled = Attribute::of_messages("value", Attribute::Kind::t, {onnx::encode_tensor(number)});
  auto one = ints("one", {1});
  one.dims = {};
  const Model before = make_model({{"Shape", "", {"x"}, {"s"}},
                                   {"ConstantOfShape", "", {"s"}, {"f"}, {filled}},
                                   {"Cast", "", {"f"}, {"g"}, {to_float}},
                                   {"Trilu", "", {"g", "one"}, {"m"}},
                                   {"Add", "", {"x", "m"}, {"masked"}},
                                   {"Softmax", "", {"masked"}, {"y"}}},
                                  {one}, 17, {value("x", {4, 4})}, {value("y", {4, 4})});
  Model after = before;
  EXPECT_EQ(graph::clamp_masks(after, kInMemory).size(), 1U);
  EXPECT_EQ(graph::constant_of_shape_value(after, after.graph.nodes[1]), graph::kMask);
  expect_near(before, after, {random_floats({4, 4})});
}

TEST(MasksOfComputedShapes, OthersStayAsTheyAre) {
  Model model = masked(spellings().front());
  model.graph.nodes.emplace_back("Abs", "", Names{"m"}, Names{"z"});  // which reads the mask for something else
  model.graph.outputs.push_back(value("z", {4, 4}));
  EXPECT_TRUE(graph::clamp_masks(model, kInMemory).empty());
}

TEST(ShapesThatAreStatic, BecomeConstants) {
  const Model before = make_model({{"Shape", "", {"x"}, {"s"}},
                                   {"ConstantOfShape", "", {"s"}, {"f"}, {filled_with(2)}},
                                   {"Mul", "", {"x", "f"}, {"y"}}},
                                  {}, 17, {value("x", {3, 4})}, {value("y", {3, 4})});
  Model after = before;
  EXPECT_EQ(graph::fold_shapes(after, infer_value_types(runtime(), after)), 1U);
  EXPECT_EQ(op_types(after), (Names{"ConstantOfShape", "Mul"}));
  expect_near(before, after, {random_floats({3, 4})});
  Model open = before;
  open.graph.inputs = {onnx::make_value_info("x", DataType::float32, std::vector<onnx::Dim>{{-1, "N"}, {4, ""}})};
  EXPECT_EQ(graph::fold_shapes(open, infer_value_types(runtime(), open)), 0U);
}

// As PyTorch's newer exporter writes them.
TEST(ShapesThatAreStatic, OfSomeAxes) {
  struct Case {
    std::int64_t start, end;
    std::vector<std::int64_t> told;
  };
  for (const auto& [start, end, told] : std::vector<Case>{
           {1, 3, {4, 5}}, {-2, 9, {4, 5}}, {2, -1, {}}, {1, 2, {4}}, {-9, 1, {}}, {0, 3, {}}, {3, 3, {}}}) {
    SCOPED_TRACE(fmt::format("{} to {}", start, end));
    Model model = make_model(
        {{"Shape", "", {"x"}, {"s"}, {Attribute::of_int("start", start), Attribute::of_int("end", end)}},
         {"ConstantOfShape", "", {"s"}, {"y"}, {filled_with(2)}}},
        {}, 17, {onnx::make_value_info("x", DataType::float32, std::vector<onnx::Dim>{{-1, "N"}, {4, ""}, {5, ""}})},
        {onnx::make_value_info("y", DataType::float32, std::nullopt)});
    EXPECT_EQ(graph::fold_shapes(model, infer_value_types(runtime(), model)), told.empty() ? 0U : 1U);
    if (told.empty()) continue;
    ASSERT_EQ(model.graph.initializers.size(), 1U);
    EXPECT_EQ(onnx::to_int64s(model.graph.initializers[0]), told);
  }
}

struct Einsum {
  std::string equation;
  std::vector<std::int64_t> left, right;
};

// As a model whose input `constant` is a constant, if it is 0 or 1.
Model einsum(const Einsum& e, int constant) {
  const std::vector<std::int64_t>* shapes[] = {&e.left, &e.right};
  std::vector<onnx::ValueInfo> inputs;
  std::vector<onnx::Tensor> constants;
  for (int i = 0; i < 2; ++i) {
    const std::string name(1, static_cast<char>('p' + i));
    const auto& shape = *shapes[i];
    if (i == constant) constants.push_back(floats(name, shape, floats_of(random_floats(shape, 7))));
    if (i != constant) inputs.push_back(value(name, shape));
  }
  return make_model({{"Einsum", "named", {"p", "q"}, {"y"}, {Attribute::of_string("equation", e.equation)}}}, constants,
                    17, inputs, {onnx::make_value_info("y", DataType::float32, std::nullopt)});
}

TEST(EinsumsOfStaticShapes, AreProductsOfMatrices) {
  const std::vector<Einsum> cases{{"btd,kdhe->kbthe", {2, 3, 4}, {3, 4, 2, 5}},
                                  {"bihe,hed->bid", {2, 3, 4, 5}, {4, 5, 6}},
                                  {"bhij,hg->bgij", {2, 3, 4, 5}, {3, 6}},
                                  {"abc,cd->abd", {2, 3, 4}, {4, 5}},
                                  {"a b c , d c -> a d b", {2, 3, 4}, {5, 4}},
                                  {"ehd,bte->bthd", {4, 5, 6}, {2, 3, 4}},
                                  {"bij,ij->b", {2, 3, 4}, {3, 4}},
                                  {"bhid,bhjd->bhij", {2, 3, 4, 5}, {2, 3, 6, 5}},
                                  {"bihd,bjhd->bhij", {2, 4, 3, 5}, {2, 6, 3, 5}},
                                  {"bhij,bjhd->bihd", {2, 3, 4, 6}, {2, 6, 3, 5}},
                                  {"bj,bji->bi", {2, 3}, {2, 3, 4}},
                                  {"bhij,hjk->bhik", {2, 3, 4, 5}, {3, 5, 6}},
                                  {"ij,j->i", {3, 4}, {4}}};
  for (const auto& e : cases) {
    for (const int constant : {-1, 0, 1}) {
      SCOPED_TRACE(fmt::format("{}, constant: {}", e.equation, constant));
      const Model before = einsum(e, constant);
      Model after = before;
      EXPECT_EQ(graph::einsums_to_matmuls(after, infer_value_types(runtime(), after), kInMemory).size(), 1U);
      const auto types = op_types(after);
      EXPECT_EQ(std::count(types.begin(), types.end(), "MatMul"), 1);
      EXPECT_EQ(std::count(types.begin(), types.end(), "Einsum"), 0);
      std::vector<Array> inputs;
      if (constant != 0) inputs.push_back(random_floats(e.left, 1));
      if (constant != 1) inputs.push_back(random_floats(e.right, 2));
      expect_near(before, after, inputs);
    }
  }
}

TEST(EinsumsWithWeights, AreProductsOfMatricesForAnyRows) {
  const std::vector<Einsum> cases{
      {"bte,ehd->bthd", {2, 3, 4}, {4, 5, 6}},      {"bte,ehd->bhtd", {2, 3, 4}, {4, 5, 6}},
      {"bqhd,hdo->bqo", {2, 3, 4, 5}, {4, 5, 6}},   {"bqhd,ohd->bqo", {2, 3, 4, 5}, {6, 4, 5}},
      {"a b c , d c -> a d b", {2, 3, 4}, {5, 4}},  {"bhij,hg->bgij", {2, 3, 4, 5}, {3, 6}},
      {"btd,kdhe->kbthe", {2, 3, 4}, {3, 4, 2, 5}}, {"abc,cd->abd", {2, 3, 4}, {4, 5}}};
  for (const auto& e : cases) {
    for (const int constant : {0, 1}) {
      SCOPED_TRACE(fmt::format("{}, constant: {}", e.equation, constant));
      Model before = einsum(e, constant);
      if (constant == 0) {
        const auto comma = e.equation.find(','), arrow = e.equation.find("->");
        const auto turned = fmt::format("{},{}{}", e.equation.substr(comma + 1, arrow - comma - 1),
                                        e.equation.substr(0, comma), e.equation.substr(arrow));
        before = einsum({turned, e.right, e.left}, constant);
      }
      auto& shape = before.graph.inputs[0].shape;
      for (std::size_t axis = 0; axis < shape->size(); ++axis) (*shape)[axis] = {-1, fmt::format("n{}", axis)};
      Model after = before;
      EXPECT_EQ(graph::einsums_with_weights(after).size(), 1U);
      const auto types = op_types(after);
      EXPECT_EQ(std::count(types.begin(), types.end(), "MatMul"), 1);
      EXPECT_EQ(std::count(types.begin(), types.end(), "Einsum"), 0);
      expect_near(before, after, {random_floats(e.left, 1)});
    }
  }
}

TEST(EinsumsWithWeights, OthersStay) {
  for (const std::string equation :
       {"...i,ij->...j", "bii,ij->bj", "bij,ij->b", "bij,jk->bk", "bij,jk", "bij,ik->bijk"}) {
    SCOPED_TRACE(equation);
    Model model = einsum({equation, {2, 2, 2}, {2, 2}}, 1);
    EXPECT_TRUE(graph::einsums_with_weights(model).empty());
  }
}

TEST(EinsumsOfStaticShapes, OthersStay) {
  for (const std::string equation : {"...i,ij->...j", "bii,ij->bj", "bij,kl->bijkl", "bij,jk->bk", "bij,jk"}) {
    SCOPED_TRACE(equation);
    Model model = einsum({equation, {2, 2, 2}, {2, 2}}, 1);
    EXPECT_TRUE(graph::einsums_to_matmuls(model, infer_value_types(runtime(), model), kInMemory).empty());
  }
}

}  // namespace
}  // namespace detent::exec::test
