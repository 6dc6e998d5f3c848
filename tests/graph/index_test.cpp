#include "graph/index.h"

#include "graph/support.h"

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

TEST(Frontier, IsWhatLivesAcrossTheCut) {
  //  x -> a -> b -> y ; a is read again by the last node, c early only, o is an output made early.
  const Model model = make_model({{"Relu", "", {"x"}, {"a"}},
                                  {"Neg", "", {"a"}, {"b"}},
                                  {"Abs", "", {"a"}, {"o"}},
                                  {"Add", "", {"b", "w"}, {"c"}},
                                  if_node("k", "a", "c", "y")},
                                 {floats("w", {2}, {1, 2})}, 17, {value("x"), value("k", {}, DataType::boolean)},
                                 {value("y"), value("o")});
  const Index index(model);
  EXPECT_EQ(values_crossing_cut(model, index, 0), (Names{"x", "k"}));
  EXPECT_EQ(values_crossing_cut(model, index, 1), (Names{"k", "a"}));
  EXPECT_EQ(values_crossing_cut(model, index, 2), (Names{"k", "a", "b"}));
  EXPECT_EQ(values_crossing_cut(model, index, 3), (Names{"k", "a", "b", "o"}));
  EXPECT_EQ(values_crossing_cut(model, index, 4), (Names{"k", "a", "o", "c"})) << "captures are reads";
  EXPECT_EQ(values_crossing_cut(model, index, 5), (Names{"o", "y"}));
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

}  // namespace
}  // namespace detent::graph::test
