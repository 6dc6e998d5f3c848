#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "graph/execution.h"
#include "graph/index.h"
#include "graph/support.h"
#include "graph/traits.h"

namespace detent::graph::test {
namespace {

TEST(Index, KnowsWhoMakesAndWhoReads) {
  const Model model =
      make_model({{"Add", "", {"x", "w"}, {"a"}}, {"Mul", "", {"a", "a"}, {"b"}}, {"Add", "", {"a", "b"}, {"y"}}},
                 {floats("w", {2}, {1, 2}), floats("unused", {1}, {0})});
  const Index index(model);
  EXPECT_EQ(index.producer("a"), 0);
  EXPECT_EQ(index.producer("x"), kNone);
  EXPECT_EQ(index.producer("nothing"), kNone);
  EXPECT_EQ(list(index.consumers("a")), (std::vector<int>{1, 2})) << "each reader once";
  EXPECT_TRUE(index.consumers("y").empty());
  EXPECT_EQ(index.initializer("w"), 0);
  EXPECT_EQ(index.initializer("unused"), 1);
  EXPECT_EQ(index.initializer("x"), kNone);
  EXPECT_TRUE(index.is_input("x"));
  EXPECT_FALSE(index.is_input("w"));
  EXPECT_TRUE(index.is_output("y"));
  EXPECT_FALSE(index.knows("nothing"));
}

TEST(Index, FreshNamesAreTaken) {
  Index index(make_model({{"Relu", "", {"x"}, {"y"}}}));
  EXPECT_EQ(index.fresh_name("new"), "new");
  EXPECT_EQ(index.fresh_name("new"), "new_1");
  EXPECT_EQ(index.fresh_name("x"), "x_1");
  EXPECT_EQ(index.fresh_name("x"), "x_2");
  Index named(make_model({{"Relu", "relu", {"x"}, {"y"}}}));
  EXPECT_EQ(named.fresh_name("relu"), "relu_1") << "nodes have names, too";
}

TEST(Index, RefusesNamesDefinedTwice) {
  const auto refuses = [](const Model& model, const std::string& part) { expect_error([&] { Index{model}; }, part); };
  refuses(make_model({{"Relu", "", {"x"}, {"y"}}, {"Neg", "n", {"x"}, {"y"}}}),
          "Neg 'n': output 'y' is already defined");
  refuses(make_model({{"Split", "", {"x"}, {"y", "y"}}}), "output 'y' is already defined");
  refuses(make_model({{"Relu", "", {"x"}, {"x"}}}), "output 'x' is already defined");
  refuses(make_model({{"Relu", "", {"x"}, {"y"}}}, {floats("y", {1}, {0})}), "output 'y' is already defined");
  refuses(make_model({{"Relu", "", {"x"}, {"y"}}}, {floats("w", {1}, {0}), floats("w", {1}, {0})}),
          "initializer 'w' is defined twice");
  refuses(make_model({{"Relu", "", {"x"}, {"y"}}}, {}, 17, {value("x"), value("x")}), "input 'x' is defined twice");
}

TEST(Index, RefusesNamesThatNothingDefines) {
  const auto refuses = [](const Model& model, const std::string& part) { expect_error([&] { Index{model}; }, part); };
  refuses(make_model({{"Add", "plus", {"x", "gone"}, {"y"}}}), "Add 'plus': input 'gone' is not defined");
  refuses(make_model({{"Add", "", {"x", "a\nb"}, {"y"}}}), "input 'a\\x0ab' is not defined");
  refuses(make_model({{"Relu", "", {"x"}, {"z"}}}), "graph output 'y' is not defined");
  refuses(make_model({if_node("c", "gone", "x", "y")}, {}, 17, {value("x"), value("c", {}, DataType::boolean)}),
          "'gone' is not defined");
  EXPECT_NO_THROW(Index(make_model({{"Clip", "", {"x", "", ""}, {"y", ""}}}))) << "optional inputs and outputs";
}

TEST(Index, SeesWhatBodiesCapture) {
  const Model model = make_model({{"Relu", "", {"x"}, {"r"}}, if_node("c", "r", "w", "y")}, {floats("w", {2}, {1, 2})},
                                 17, {value("x"), value("c", {}, DataType::boolean)});
  const Index index(model);
  EXPECT_EQ(captured_names(model, model.graph.nodes[1]), (Names{"r", "w"}));
  EXPECT_TRUE(captured_names(model, model.graph.nodes[0]).empty());
  EXPECT_TRUE(index.is_captured("r"));
  EXPECT_TRUE(index.is_captured("w"));
  EXPECT_FALSE(index.is_captured("c"));
  EXPECT_EQ(list(index.consumers("r")), (std::vector<int>{1}));
}

TEST(Index, BodiesHideAndNest) {
  // The Loop's own input `v` and its local `t` hide names of the outer graph; its inner If reads `t` from the Loop and
  // `w` from afar.
  const Node inner = if_node("cond", "t", "w", "o");
  const Node loop("Loop", "loop", {"", "c", "x"}, {"y"},
                  {body("body", {Node("Relu", "", {"v"}, {"t"}), inner}, {value("cond"), value("o"), value("k")},
                        {value("i"), value("cond"), value("v")},
                        {onnx::test::tensor_head("local", DataType::float32, {}).fixed32(4, 1)})});
  const Model model = make_model({loop}, {floats("w", {2}, {1, 2}), floats("t", {1}, {0}), floats("k", {2}, {1, 2})},
                                 17, {value("x"), value("c", {}, DataType::boolean)});
  EXPECT_EQ(captured_names(model, model.graph.nodes[0]), (Names{"k", "w"})) << "an output may be captured, too";
  EXPECT_FALSE(Index(model).is_captured("t"));
}

TEST(Index, RefusesBodiesNestedWithoutEnd) {
  Node n("Relu", "", {"x"}, {"y"});
  for (int depth = 0; depth < 1000; ++depth)
    n = Node("If", "deep", {"x"}, {"y"}, {body("then_branch", {n}, {value("y")})});
  expect_error([&] { Index{make_model({n})}; }, "nested too deeply");
}

TEST(Index, DamagedBodiesAreErrors) {
  const auto attribute = [](const std::string& graph) {
    return Attribute(onnx::Wire::own(onnx::test::attribute_head("then_branch").text(6, graph).varint(20, 5).bytes));
  };
  expect_error([&] { Index{make_model({{"If", "bad", {"x"}, {"y"}, {attribute("\x0a\x7f")}}})}; }, "body of If 'bad'");
  expect_error([&] { Index{make_model({{"If", "bad", {"x"}, {"y"}, {attribute("\xff\xff")}}})}; }, "body of If 'bad'");
}

TEST(Dependence, FollowsInputsAndChance) {
  const Model model =
      make_model({{"Neg", "", {"w"}, {"a"}},
                  {"Shape", "", {"x"}, {"b"}},
                  {"RandomNormal", "", {}, {"c"}},
                  {"Add", "", {"a", "c"}, {"d"}},
                  if_node("cc", "a", "x", "e"),
                  if_node("cc", "a", "w", "f"),
                  {"Relu", "", {"x"}, {"y"}}},
                 {floats("w", {2}, {1, 2}), onnx::make_tensor<bool>("cc", DataType::boolean, {}, std::array{true})});
  EXPECT_EQ(depends_on_input(model, Index(model)), (std::vector<bool>{false, true, true, true, true, false, true}));
  Model overridable = model;
  overridable.graph.inputs.push_back(value("w"));
  EXPECT_TRUE(depends_on_input(overridable, Index(overridable))[0]) << "a default that the caller may override";
}

TEST(Sort, KeepsAnOrderThatIsFree) {
  Model sorted = make_model({{"Relu", "1", {"x"}, {"a"}},
                             {"Relu", "2", {"x"}, {"b"}},
                             {"Relu", "3", {"x"}, {"c"}},
                             {"Sum", "4", {"c", "b", "a"}, {"y"}}});
  sort_topologically(sorted);
  Names names;
  for (const auto& n : sorted.graph.nodes) names.push_back(n.name());
  EXPECT_EQ(names, (Names{"1", "2", "3", "4"}));
}

TEST(Sort, BringsProducersFirst) {
  Model model =
      make_model({{"Sum", "last", {"c", "b"}, {"y"}}, if_node("k", "b", "b", "c"), {"Relu", "first", {"x"}, {"b"}}}, {},
                 17, {value("x"), value("k", {}, DataType::boolean)});
  sort_topologically(model);
  EXPECT_EQ(op_types(model), (Names{"Relu", "If", "Sum"})) << "a body's captures count";
}

TEST(Sort, RefusesCycles) {
  Model two = make_model({{"Add", "", {"x", "b"}, {"a"}}, {"Relu", "", {"a"}, {"b"}}, {"Relu", "", {"x"}, {"y"}}});
  expect_error([&] { sort_topologically(two); }, "cycle");
  Model self = make_model({{"Add", "", {"x", "y"}, {"y"}}});
  expect_error([&] { sort_topologically(self); }, "cycle");
}

// The table of operator traits: against ONNX Runtime's list, and against itself.

using namespace test;

using enum Trait;

std::string label(const OperatorTraits& row) { return std::string(row.domain) + ":" + std::string(row.type); }

TEST(Traits, OneRowForEachType) {
  std::set<std::string> seen;
  for (const auto& row : all_traits()) EXPECT_TRUE(seen.insert(label(row)).second) << label(row);
}

TEST(Traits, EachRowIsFoundByItsNode) {
  for (const auto& row : all_traits()) {
    const Node node(std::string(row.type), "", {"x"}, {"y"}, {}, std::string(row.domain));
    EXPECT_EQ(label(traits_of(node)), label(row));
  }
}

TEST(Traits, TypesOfOtherDomainsAreUnknown) {
  const auto& traits = traits_of({"Conv", "", {"x"}, {"y"}, {}, "com.example"});
  EXPECT_EQ(traits.traits, none);
  EXPECT_EQ(traits.counting, Counting::per_output);
  EXPECT_TRUE(traits.type.empty());
}

TEST(Traits, QuantizedByDefaultIsWhatQuantizeStaticTakes) {
  // QDQRegistry of onnxruntime/quantization/registry.py, with what QLinearOpsRegistry and CommonOpsRegistry add to it.
  const std::set<std::string> wanted{"Add",
                                     "ArgMax",
                                     "AveragePool",
                                     "BatchNormalization",
                                     "Clip",
                                     "Concat",
                                     "Conv",
                                     "ConvTranspose",
                                     "CumSum",
                                     "EmbedLayerNormalization",
                                     "Flatten",
                                     "Gather",
                                     "GatherElements",
                                     "Gemm",
                                     "GlobalAveragePool",
                                     "InstanceNormalization",
                                     "LayerNormalization",
                                     "LeakyRelu",
                                     "MatMul",
                                     "MaxPool",
                                     "Mul",
                                     "Pad",
                                     "Relu",
                                     "Reshape",
                                     "Resize",
                                     "Sigmoid",
                                     "Slice",
                                     "Softmax",
                                     "Split",
                                     "Squeeze",
                                     "TopK",
                                     "Transpose",
                                     "Unsqueeze",
                                     "Where"};
  std::set<std::string> found;
  for (const auto& row : all_traits()) {
    if (row.is(by_default)) found.emplace(row.type);
  }
  EXPECT_EQ(found, wanted);
}

struct Implication {
  Trait trait, implied;
};

class Implied : public ::testing::TestWithParam<Implication> {};

TEST_P(Implied, ByTheOther) {
  const auto [trait, implied] = GetParam();
  std::size_t count = 0;
  for (const auto& row : all_traits()) {
    if (!row.is(trait)) continue;
    EXPECT_TRUE(row.is(implied)) << label(row);
    ++count;
  }
  EXPECT_GT(count, 0u);
}

INSTANTIATE_TEST_SUITE_P(Traits, Implied,
                         ::testing::Values(Implication{convolution, product}, Implication{product, by_default},
                                           Implication{clips, element_wise}, Implication{clips, carries_integers},
                                           Implication{overwrites, element_wise},
                                           Implication{has_response, element_wise}));

TEST(Traits, ProductsAreCountedInMultiplyAccumulatesAndHaveChannels) {
  for (const auto& row : all_traits()) {
    const Node node(std::string(row.type), "", {"x", "w"}, {"y"}, {}, std::string(row.domain));
    EXPECT_EQ(is_product(node), row.is(product));
    EXPECT_EQ(is_matrix_product(node), row.is(product) && !row.is(convolution));
    if (row.is(product)) {
      EXPECT_EQ(row.counting, Counting::macs) << label(row);
    }
    EXPECT_EQ(channel_axis(node, 2).has_value(), row.is(product) || row.is(normalization)) << label(row);
  }
}

TEST(Traits, OfOperatorsThatDoNotCompute) {
  for (const auto& row : all_traits()) {
    const bool computes = row.counting != Counting::moves && row.counting != Counting::free;
    EXPECT_FALSE(computes && (row.is(rearranges) || row.is(renames) || row.is(looks_up))) << label(row);
    // Nothing is both in a place of its own and the same memory.
    EXPECT_FALSE(row.is(renames) && row.is(overwrites)) << label(row);
    EXPECT_FALSE(row.is(quantized) && row.is(by_default)) << label(row);
  }
}

TEST(Traits, AxisOfTheOutputsOfAWeight) {
  const std::vector<std::string> in{"x", "w"};
  EXPECT_EQ(channel_axis({"Conv", "", in, {"y"}}, 4), 0u);
  EXPECT_EQ(channel_axis({"ConvTranspose", "", in, {"y"}}, 4), 1u);
  EXPECT_EQ(channel_axis({"MatMul", "", in, {"y"}}, 2), 1u);
  EXPECT_EQ(channel_axis({"MatMul", "", in, {"y"}}, 4), std::nullopt);
  EXPECT_EQ(channel_axis({"MatMul", "", in, {"y"}}, 1), std::nullopt);
  EXPECT_EQ(channel_axis({"Gemm", "", in, {"y"}}, 2), 1u);
  EXPECT_EQ(channel_axis({"Gemm", "", in, {"y"}, {Attribute::of_int("transB", 1)}}, 2), 0u);
  EXPECT_EQ(channel_axis({"InstanceNormalization", "", in, {"y"}}, 1), std::nullopt);
  EXPECT_EQ(channel_axis({"Relu", "", in, {"y"}}, 2), std::nullopt);
}

// The runtime's order of nodes, against orders that ONNX Runtime 1.31 took (its profile tells).

std::vector<int> order_of(const std::vector<Node>& nodes, const std::vector<onnx::ValueInfo>& outputs = {value("y")}) {
  const Model model = make_model(nodes, {}, 17, {value("x")}, outputs);
  return execution_order(model, Index(model));
}

TEST(ExecutionOrder, OfAChainIsThatOfTheFile) {
  EXPECT_EQ(order_of({{"Relu", "", {"x"}, {"a"}}, {"Abs", "", {"a"}, {"b"}}, {"Neg", "", {"b"}, {"y"}}}),
            (std::vector{0, 1, 2}));
}

TEST(ExecutionOrder, TheBranchThatEndsLaterGoesFirst) {
  // As in a feature pyramid: the shortcut (1) waits until the long branch (2, 3) is done.
  EXPECT_EQ(order_of({{"Relu", "", {"x"}, {"a"}},
                      {"Abs", "", {"a"}, {"short"}},
                      {"Neg", "", {"a"}, {"b"}},
                      {"Exp", "", {"b"}, {"long"}},
                      {"Add", "", {"short", "long"}, {"y"}}}),
            (std::vector{0, 2, 3, 1, 4}));
}

TEST(ExecutionOrder, StartsFromTheLastLeaf) {
  EXPECT_EQ(order_of({{"Relu", "", {"x"}, {"a"}}, {"Abs", "", {"a"}, {"y"}}, {"Neg", "", {"a"}, {"z"}}},
                     {value("y"), value("z")}),
            (std::vector{0, 2, 1}));
}

TEST(ExecutionOrder, BodiesReadFromAroundThem) {
  const std::vector<int> order = order_of({{"Relu", "", {"x"}, {"a"}},
                                           {"Abs", "", {"x"}, {"b"}},
                                           {"ReduceMax", "", {"x"}, {"c"}},
                                           if_node("c", "a", "b", "y")});
  EXPECT_EQ(order, (std::vector{2, 1, 0, 3}));
}

TEST(ExecutionOrder, HasEveryNodeOnceAfterItsProducers) {
  const std::vector<Node> nodes{{"Relu", "", {"x"}, {"a"}},     {"Abs", "", {"a"}, {"b"}},
                                {"Add", "", {"a", "b"}, {"c"}}, {"Mul", "", {"b", "b"}, {"d"}},
                                {"Neg", "", {"d"}, {"unread"}}, {"Sub", "", {"c", "d"}, {"e"}},
                                {"Sum", "", {"e", "a"}, {"y"}}};
  const Model model = make_model(nodes);
  const Index index(model);
  const auto order = execution_order(model, index);
  ASSERT_EQ(order.size(), nodes.size());
  std::set<int> done;
  for (const int n : order) {
    for (const auto& input : nodes[static_cast<std::size_t>(n)].inputs()) {
      EXPECT_TRUE(index.producer(input) == kNone || done.contains(index.producer(input)));
    }
    EXPECT_TRUE(done.insert(n).second);
  }
}

// Convolutions of one place with strides: which become a pool and a convolution without.

Node conv(const std::string& x, const std::string& w, const std::string& y, std::vector<Attribute> attributes) {
  return {"Conv", y, {x, w}, {y}, std::move(attributes)};
}
Attribute strides(std::int64_t n) { return Attribute::of_ints("strides", {n, n}); }

class StridedPoints : public ::testing::Test {
 protected:
  Model model_of(std::vector<Node> nodes) {
    return make_model(std::move(nodes), {floats("w", {1, 1, 1, 1}, {2}), floats("v", {1, 1, 3, 3}, Floats(9, 1))}, 17,
                      {value("x", {1, 1, 5, 5})}, {value("y", {1, 1, 3, 3}), value("z", {1, 1, 3, 3})});
  }
};

TEST_F(StridedPoints, ShareAPoolWhereTheyReadTheSame) {
  auto model = model_of({conv("x", "w", "y", {strides(2)}), conv("x", "w", "z", {strides(2)})});
  EXPECT_EQ(pool_before_strided_points(model).size(), 1U);
  ASSERT_EQ(model.graph.nodes.size(), 3U);
  const auto& pool = model.graph.nodes[0];
  EXPECT_TRUE(pool.is("MaxPool"));
  EXPECT_EQ(pool.attribute("strides")->as_ints(), (std::vector<std::int64_t>{2, 2}));
  EXPECT_EQ(pool.attribute("kernel_shape")->as_ints(), (std::vector<std::int64_t>{1, 1}));
  for (const auto n : {1U, 2U}) {
    EXPECT_EQ(model.graph.nodes[n].inputs()[0], pool.outputs()[0]);
    EXPECT_EQ(model.graph.nodes[n].attribute("strides")->as_ints(), (std::vector<std::int64_t>{1, 1}));
  }
}

TEST_F(StridedPoints, LeaveOthersAlone) {
  auto model = model_of({conv("x", "v", "y", {strides(2)}), conv("x", "w", "z", {strides(1)})});
  EXPECT_TRUE(pool_before_strided_points(model).empty());
  EXPECT_EQ(model.graph.nodes.size(), 2U);
  auto padded = model_of({conv("x", "w", "y", {strides(2), Attribute::of_ints("pads", {1, 1, 0, 0})}),
                          conv("x", "w", "z", {strides(2), Attribute::of_string("auto_pad", "SAME_UPPER")})});
  EXPECT_TRUE(pool_before_strided_points(padded).empty());
}

// Arithmetic, traffic and memory of graphs, against counts made by hand.

onnx::Tensor weight(const std::string& name, const std::vector<std::int64_t>& dims) {
  std::size_t count = 1;
  for (const auto d : dims) count *= static_cast<std::size_t>(d);
  return floats(name, dims, Floats(count, 0.5F));
}

std::optional<Work> work(const Node& node, std::vector<onnx::Tensor> weights, const ValueTypes& types) {
  const Model model = make_model({node}, std::move(weights));
  const Index index(model);
  return work_of(model, index, types, model.graph.nodes.front());
}

TEST(Work, OfAConvolutionByHand) {
  // 8 output channels of 5 x 5, each the sum of 3 channels x 3 x 3, and a bias.
  const auto w = work({"Conv", "c", {"x", "w", "b"}, {"y"}}, {weight("w", {8, 3, 3, 3}), weight("b", {8})},
                      types_of({{"x", {1, 3, 7, 7}}, {"y", {1, 8, 5, 5}}}));
  ASSERT_TRUE(w);
  EXPECT_EQ(w->macs, 200u * 27);
  EXPECT_EQ(w->flops, 2u * 200 * 27 + 200);
  EXPECT_EQ(w->bytes, 4u * (147 + 216 + 8 + 200));
}

TEST(Work, OfADepthwiseConvolution) {
  const auto w = work({"Conv", "c", {"x", "w"}, {"y"}, {Attribute::of_int("group", 16)}}, {weight("w", {16, 1, 3, 3})},
                      types_of({{"x", {2, 16, 4, 4}}, {"y", {2, 16, 4, 4}}}));
  ASSERT_TRUE(w);
  EXPECT_EQ(w->macs, 2u * 16 * 16 * 9);
}

TEST(Work, OfATransposedConvolution) {
  // Each of 2 x 3 x 3 inputs is multiplied with 4 channels x 2 x 2.
  const auto w = work({"ConvTranspose", "c", {"x", "w"}, {"y"}}, {weight("w", {2, 4, 2, 2})},
                      types_of({{"x", {1, 2, 3, 3}}, {"y", {1, 4, 6, 6}}}));
  ASSERT_TRUE(w);
  EXPECT_EQ(w->macs, 18u * 16);
}

TEST(Work, OfProducts) {
  const auto gemm = work({"Gemm", "g", {"x", "w", "b"}, {"y"}, {Attribute::of_int("transA", 1)}},
                         {weight("w", {10, 4}), weight("b", {4})}, types_of({{"x", {10, 3}}, {"y", {3, 4}}}));
  ASSERT_TRUE(gemm);
  EXPECT_EQ(gemm->macs, 3u * 4 * 10);
  EXPECT_EQ(gemm->flops, 2u * 120 + 12);
  const auto batched =
      work({"MatMul", "m", {"x", "x"}, {"y"}}, {}, types_of({{"x", {2, 12, 64, 64}}, {"y", {2, 12, 64, 64}}}));
  ASSERT_TRUE(batched);
  EXPECT_EQ(batched->macs, 2u * 12 * 64 * 64 * 64);
  EXPECT_EQ(batched->bytes, 3u * 4 * 2 * 12 * 64 * 64);
}

TEST(Work, OfTheRest) {
  const auto types = types_of({{"x", {2, 8}}, {"y", {2, 8}}});
  EXPECT_EQ(work({"Relu", "r", {"x"}, {"y"}}, {}, types)->flops, 16u);
  EXPECT_EQ(work({"Transpose", "t", {"x"}, {"y"}}, {}, types)->flops, 0u);
  EXPECT_EQ(work({"Transpose", "t", {"x"}, {"y"}}, {}, types)->bytes, 128u);
  EXPECT_EQ(work({"Reshape", "s", {"x", "x"}, {"y"}}, {}, types)->bytes, 0u);
  EXPECT_EQ(work({"ReduceMean", "m", {"x"}, {"y"}}, {}, types)->flops, 16u);
  const auto pool = work({"MaxPool", "p", {"x"}, {"y"}, {Attribute::of_ints("kernel_shape", {3, 3})}}, {}, types);
  EXPECT_EQ(pool->flops, 16u * 9);
}

TEST(Work, IsUnknownWithoutStaticShapes) {
  EXPECT_FALSE(work({"Relu", "r", {"x"}, {"y"}}, {}, types_of({{"x", {2, 8}}, {"y", {-1, 8}}})));
  EXPECT_FALSE(work({"Relu", "r", {"x"}, {"y"}}, {}, types_of({{"x", {2, 8}}})));
}

std::vector<int> cuts_of(const std::string& turned_again, int end = 5) {
  // Two weights of 1.2 MiB, the first turned before it is read; a number that is negated and read at the end.
  const Model model =
      make_model({{"Neg", "0", {"number"}, {"less"}},
                  {"Transpose", "1", {"first"}, {"turned"}},
                  {"MatMul", "2", {"x", "turned"}, {"a"}},
                  {"MatMul", "3", {"a", "second"}, {"b"}},
                  {"Mul", "4", {"b", turned_again}, {"y"}}},
                 {floats("number", {1}, {2}), weight("first", {600, 512}), weight("second", {600, 512})});
  return cuts_by_constants(model, Index(model), 3U << 19, 0, end);
}

TEST(Cuts, StandBetweenLargeConstantsAndNotBeforeWhatReadsThemTurned) {
  EXPECT_EQ(cuts_of("less"), std::vector{3});
  EXPECT_EQ(cuts_of("less", 3), std::vector<int>());
  EXPECT_EQ(cuts_of("turned"), std::vector<int>());
}

std::uint64_t peak(const std::vector<Node>& nodes, const ValueTypes& types, const Workspace& workspace = {},
                   std::vector<onnx::Tensor> weights = {}) {
  const Model model = make_model(nodes, std::move(weights));
  const auto alive = liveness(model, Index(model), types, workspace);
  EXPECT_TRUE(alive);
  return alive ? alive->peak_bytes : 0;
}

TEST(Liveness, AChainHoldsTwoValuesAtATime) {
  const auto types = types_of({{"x", {100}}, {"a", {100}}, {"b", {100}}, {"y", {100}}});
  const std::vector<Node> chain{
      {"Softmax", "1", {"x"}, {"a"}}, {"Softmax", "2", {"a"}, {"b"}}, {"Softmax", "3", {"b"}, {"y"}}};
  EXPECT_EQ(peak(chain, types), 800u);
}

TEST(Liveness, ElementWiseNodesWriteOverTheirInput) {
  const auto types = types_of({{"x", {100}}, {"a", {100}}, {"b", {100}}, {"y", {100}}});
  EXPECT_EQ(
      peak({{"Softmax", "1", {"x"}, {"a"}}, {"Relu", "2", {"a"}, {"b"}}, {"Reshape", "3", {"b", "b"}, {"y"}}}, types),
      800u);
  // The graph input is the caller's.
  EXPECT_EQ(peak({{"Relu", "1", {"x"}, {"y"}}}, types), 800u);
}

TEST(Liveness, AResidualStaysAlive) {
  const auto types = types_of({{"x", {100}}, {"a", {100}}, {"b", {100}}, {"c", {100}}, {"y", {100}}});
  EXPECT_EQ(peak({{"Softmax", "1", {"x"}, {"a"}},
                  {"Softmax", "2", {"a"}, {"b"}},
                  {"Softmax", "3", {"b"}, {"c"}},
                  {"Add", "4", {"a", "c"}, {"y"}}},
                 types),
            1200u);
}

TEST(Liveness, WorkspaceCountsWhileItsNodeRuns) {
  const auto types =
      types_of({{"x", {1, 1, 10, 10}}, {"a", {1, 1, 10, 10}}, {"b", {1, 1, 10, 10}}, {"y", {1, 1, 10, 10}}});
  const std::vector<Node> nodes{
      {"Softmax", "1", {"x"}, {"a"}}, {"Conv", "2", {"a", "w"}, {"b"}}, {"Add", "3", {"a", "b"}, {"y"}}};
  EXPECT_EQ(peak(nodes, types, {}, {weight("w", {1, 1, 1, 1})}), 800u);
  // The convolution's input is read once more, by the Add.
  const Workspace copies = [](const Node& node, bool kept) { return node.is("Conv") && kept ? 400u : 0u; };
  EXPECT_EQ(peak(nodes, types, copies, {weight("w", {1, 1, 1, 1})}), 1200u);
}

}  // namespace
}  // namespace detent::graph::test
