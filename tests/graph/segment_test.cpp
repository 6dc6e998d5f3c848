// Models cut into chains: what crosses, what goes along, and where a cut does no harm.
#include "graph/segment.h"

#include <gtest/gtest.h>

#include "graph/support.h"

namespace detent::graph {
namespace {

using namespace test;

Node relu(const std::string& in, const std::string& out) { return {"Relu", "", {in}, {out}}; }
Node add(const std::string& a, const std::string& b, const std::string& out) { return {"Add", "", {a, b}, {out}}; }

ValueTypes floats_for(const Names& names) {
  ValueTypes types;
  for (const auto& name : names) types[name] = {DataType::float32, std::vector<onnx::Dim>{{2, ""}}};
  return types;
}

Chain chain_of(const Model& model, const std::vector<int>& cuts) { return make_chain(model, Index(model), cuts); }

Names node_outputs(const Model& model) {
  Names names;
  for (const auto& node : model.graph.nodes) names.push_back(node.outputs().front());
  return names;
}

Names names_of(const std::vector<onnx::ValueInfo>& infos) {
  Names names;
  for (const auto& info : infos) names.push_back(info.name);
  return names;
}

TEST(MakeChain, WithoutCutsIsTheWholeModel) {
  const auto chain = chain_of(make_model({relu("x", "a"), relu("a", "y")}), {});
  ASSERT_EQ(chain.segments.size(), 1U);
  EXPECT_EQ(chain.segments[0].begin, 0);
  EXPECT_EQ(chain.segments[0].end, 2);
  EXPECT_TRUE(chain.segments[0].outputs.empty());
  EXPECT_TRUE(chain.lanes.empty());
}

TEST(MakeChain, HandsOnFromOneToTheNext) {
  const auto chain = chain_of(make_model({relu("x", "a"), relu("a", "b"), relu("b", "y")}), {1, 2});
  ASSERT_EQ(chain.segments.size(), 3U);
  EXPECT_EQ(chain.segments[1].inputs, Names{"a"});
  EXPECT_EQ(chain.segments[1].outputs, Names{"b"});
  ASSERT_EQ(chain.lanes.size(), 2U);
  EXPECT_EQ(chain.lanes[0].values, Names{"a"});
  EXPECT_EQ(chain.lanes[0].producer, 0);
  EXPECT_EQ(chain.lanes[0].readers, std::vector<int>{1});
}

TEST(MakeChain, ValuesWithTheSameReadersTravelTogether) {
  const auto model = make_model(
      {relu("x", "a"), relu("x", "b"), relu("x", "s"), add("a", "b", "c"), add("c", "s", "d"), add("d", "s", "y")});
  const auto chain = chain_of(model, {3, 4, 5});
  ASSERT_EQ(chain.lanes.size(), 4U);
  EXPECT_EQ(chain.lanes[0].values, (Names{"a", "b"}));
  EXPECT_EQ(chain.lanes[0].readers, std::vector<int>{1});
  EXPECT_EQ(chain.lanes[1].values, Names{"s"});
  EXPECT_EQ(chain.lanes[1].readers, (std::vector<int>{2, 3}));
}

TEST(MakeChain, InputsThatAreReadLaterWaitToo) {
  const auto chain = chain_of(make_model({relu("x", "a"), add("a", "x", "y")}), {1});
  Names waiting;
  for (const auto& lane : chain.lanes) {
    EXPECT_EQ(lane.producer, 0);
    waiting.insert(waiting.end(), lane.values.begin(), lane.values.end());
  }
  std::sort(waiting.begin(), waiting.end());
  EXPECT_EQ(waiting, (Names{"a", "x"}));
}

TEST(MakeChain, ConstantNodesGoAlong) {
  const auto model = make_model({relu("w", "c"), add("x", "c", "a"), add("a", "c", "y")}, {floats("w", {2}, {1, 2})});
  const Index index(model);
  const auto chain = make_chain(model, index, {2});
  EXPECT_EQ(chain.segments[0].outputs, Names{"a"});
  EXPECT_EQ(chain.segments[1].inputs, Names{"a"});
  for (const auto& segment : chain.segments) {
    const auto part = segment_model(model, index, floats_for({"x", "c", "a", "y"}), segment);
    EXPECT_EQ(node_outputs(part).front(), "c");
    EXPECT_EQ(initializer_names(part), Names{"w"});
  }
}

TEST(MakeChain, WhatBodiesTakeFromAroundThemCrosses) {
  const auto model = make_model({relu("x", "a"), relu("a", "b"), if_node("cond", "a", "b", "y")}, {}, 17,
                                {value("x"), value("cond", {}, DataType::boolean)});
  const Index index(model);
  const auto chain = make_chain(model, index, {2});
  auto inputs = chain.segments[1].inputs;
  std::sort(inputs.begin(), inputs.end());
  EXPECT_EQ(inputs, (Names{"a", "b", "cond"}));
  EXPECT_EQ(chain.segments[0].outputs, (Names{"a", "b"}));
}

TEST(SegmentModel, HasTheSegmentsNodesInputsAndOutputs) {
  const auto model = make_model({relu("x", "a"), add("a", "w", "b"), relu("b", "y")}, {floats("w", {2}, {1, 2})});
  const Index index(model);
  const auto chain = make_chain(model, index, {1, 2});
  const auto part = segment_model(model, index, floats_for({"x", "a", "b", "y"}), chain.segments[1]);
  EXPECT_EQ(op_types(part), Names{"Add"});
  EXPECT_EQ(names_of(part.graph.inputs), Names{"a"});
  EXPECT_EQ(names_of(part.graph.outputs), Names{"b"});
  const auto last = segment_model(model, index, floats_for({"x", "a", "b", "y"}), chain.segments[2]);
  EXPECT_EQ(names_of(last.graph.outputs), Names{"y"});
  EXPECT_TRUE(last.graph.initializers.empty());
}

TEST(SegmentModel, ToldNoShapeWhereATapHidIt) {
  const auto model = make_model({relu("x", "a"), relu("a", "y")});
  const Index index(model);
  const auto chain = make_chain(model, index, {1});
  const auto types = floats_for({"x", "a", "y"});
  const auto shape_told = [&](const std::unordered_set<std::string>& shapeless) {
    const auto segment = segment_model(model, index, types, chain.segments[1], shapeless);
    return std::string(segment.graph.inputs.front().raw.view());
  };
  const std::string told = shape_told({}), hidden = shape_told({"a"});
  EXPECT_GT(told.size(), hidden.size());
}

std::vector<int> cuts_of(const Model& model, const ValueTypes& types, const std::unordered_set<std::string>& observed) {
  return harmless_cuts(model, Index(model), types, observed);
}

TEST(HarmlessCuts, StandWhereOnlyObservedValuesCross) {
  const auto model = make_model({relu("x", "a"), relu("a", "b"), relu("b", "c"), add("c", "a", "y")});
  const auto types = floats_for({"x", "a", "b", "c", "y"});
  EXPECT_EQ(cuts_of(model, types, {"a", "b", "c"}), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(cuts_of(model, types, {"b", "c"}), std::vector<int>());
  EXPECT_EQ(cuts_of(model, types, {"a", "c"}), (std::vector<int>{1, 3}));
}

TEST(HarmlessCuts, IntegersAndInputsMayCross) {
  const auto model = make_model({{"Shape", "", {"x"}, {"s"}}, relu("x", "a"), {"Reshape", "", {"a", "s"}, {"y"}}});
  auto types = floats_for({"x", "a", "y"});
  types["s"] = {DataType::int64, std::vector<onnx::Dim>{{1, ""}}};
  EXPECT_EQ(cuts_of(model, types, {}), std::vector<int>{1});
  EXPECT_EQ(cuts_of(model, types, {"a"}), (std::vector<int>{1, 2}));
}

TEST(HarmlessCuts, ValuesOfUnknownTypeMayNotCross) {
  const auto model = make_model({relu("x", "a"), relu("a", "y")});
  EXPECT_TRUE(cuts_of(model, {}, {"a"}).empty());
}

}  // namespace
}  // namespace detent::graph
