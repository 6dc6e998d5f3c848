// Which values decide how many elements others have, in small graphs.
#include "graph/decisions.h"

#include <gtest/gtest.h>

#include "graph/support.h"

namespace detent::graph {
namespace {

using namespace test;

Decisions decisions_of(std::vector<Node> nodes, const std::map<std::string, DataType>& types,
                       DecisionKind kind = DecisionKind::sizes) {
  const auto model = make_model(std::move(nodes), {ints("one", {1})});
  ValueTypes known{{"x", {DataType::float32, {}}}, {"one", {DataType::int64, {}}}};
  for (const auto& [name, type] : types) known[name] = {type, {}};
  return find_decisions(model, known, kind);
}

constexpr auto kFloat = DataType::float32;
constexpr auto kInt = DataType::int64;

TEST(Decisions, ShapesDecideNothing) {
  const auto found =
      decisions_of({{"Shape", "s", {"x"}, {"shape"}},
                    {"Cast", "f", {"shape"}, {"floats"}, {Attribute::of_int("to", 1)}},
                    {"Floor", "r", {"floats"}, {"whole"}},
                    {"Cast", "i", {"whole"}, {"sizes"}, {Attribute::of_int("to", 7)}},
                    {"Expand", "e", {"x", "sizes"}, {"y"}}},
                   {{"shape", kInt}, {"floats", kFloat}, {"whole", kFloat}, {"sizes", kInt}, {"y", kFloat}});
  EXPECT_TRUE(found.empty());
  EXPECT_TRUE(found.sizing.empty());
}

TEST(Decisions, AreHeldWhereValuesAreMadeWhole) {
  const auto found = decisions_of({{"Exp", "e", {"x"}, {"d"}},
                                   {"Ceil", "c", {"d"}, {"frames"}},
                                   {"ReduceSum", "s", {"frames"}, {"sum"}},
                                   {"Cast", "i", {"sum"}, {"end"}, {Attribute::of_int("to", 7)}},
                                   {"Range", "r", {"one", "end", "one"}, {"y"}}},
                                  {{"d", kFloat}, {"frames", kFloat}, {"sum", kFloat}, {"end", kInt}, {"y", kInt}});
  EXPECT_EQ(found.held, Names{"frames"});
  EXPECT_EQ(found.judged, Names{"d"});
  EXPECT_EQ(found.sizing, Names{"Range 'r'"});
}

TEST(Decisions, OfNodesThatDecideByWhatTheyReadAreCopies) {
  const auto found = decisions_of({{"Sigmoid", "s", {"x"}, {"scores"}},
                                   {"NonMaxSuppression", "n", {"x", "scores", "one"}, {"chosen"}},
                                   {"Shape", "h", {"chosen"}, {"count"}},
                                   {"ConstantOfShape", "k", {"count"}, {"y"}}},
                                  {{"scores", kFloat}, {"chosen", kInt}, {"count", kInt}, {"y", kFloat}});
  ASSERT_EQ(found.operands.size(), 2u);
  EXPECT_EQ(found.operands[1].input, 1u);
  EXPECT_EQ(found.judged, Names{"scores"});
  EXPECT_TRUE(found.held.empty());
}

TEST(Decisions, AreHeldWhereAnElementIsChosenOnlyIfAsked) {
  const std::vector<Node> nodes{{"Sigmoid", "s", {"x"}, {"scores"}},
                                {"TopK", "k", {"scores", "one"}, {"best", "places"}},
                                {"Gather", "g", {"x", "places"}, {"y"}}};
  const std::map<std::string, DataType> types{{"scores", kFloat}, {"best", kFloat}, {"places", kInt}, {"y", kFloat}};
  EXPECT_TRUE(decisions_of(nodes, types).empty());
  const auto found = decisions_of(nodes, types, DecisionKind::all);
  EXPECT_EQ(found.held, Names{"places"});
  EXPECT_TRUE(found.sizing.empty());
}

TEST(Decisions, RandomDrawsAreHeld) {
  const auto found = decisions_of({{"RandomNormalLike", "r", {"x"}, {"noise"}}, {"Add", "a", {"x", "noise"}, {"y"}}},
                                  {{"noise", kFloat}, {"y", kFloat}});
  EXPECT_EQ(found.held, Names{"noise"});
  EXPECT_EQ(found.drawn, Names{"noise"});
}

}  // namespace
}  // namespace detent::graph
