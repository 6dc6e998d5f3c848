// Every rewrite keeps the model's function: the runtime computes the same, before and after, on random input.
#include <array>
#include <cmath>

#include "exec/support.h"

namespace detent::exec::test {
namespace {

void expect_same_bits(const Model& before, const Model& after, const std::vector<Array>& inputs) {
  const auto want = run(before, inputs);
  const auto got = run(after, inputs);
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].shape, want[i].shape);
    EXPECT_EQ(bytes_of(got[i]), bytes_of(want[i]));
  }
}

struct Case {
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

std::vector<Case> cases() {
  const auto nearest = Attribute::of_string("mode", "nearest");
  const auto linear = Attribute::of_string("mode", "linear");
  std::vector<Case> all{
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
  for (const Case& c : cases()) {
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

}  // namespace
}  // namespace detent::exec::test
