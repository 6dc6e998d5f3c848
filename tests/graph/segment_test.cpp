#include <gtest/gtest.h>

#include "graph/decisions.h"
#include "graph/index.h"
#include "graph/patterns.h"
#include "graph/segment.h"
#include "graph/support.h"
#include "onnx/bodies.h"
#include "onnx/functions.h"
#include "onnx/write.h"

namespace detent::graph::test {
namespace {

// Models cut into chains: what crosses, what goes along, and where a cut does no harm.

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

// Bodies unfolded into the main graph, and folded again when the model is written.

// Both branches make "made" of a constant "c", and one of them hands on a value from outside.
Node branching(const std::string& name, const std::string& read, const std::string& out) {
  const auto constant = onnx::test::Msg().varint(1, 2).varint(2, 1).text(8, "c").text(9, std::string(8, '\0'));
  const auto branch = [&](const char* attribute, const char* type) {
    return body(attribute, {Node(type, "work", {read, "c"}, {"made"})}, {value("made")}, {}, {constant});
  };
  return {"If", name, {"flag"}, {out}, {branch("then_branch", "Add"), branch("else_branch", "Mul")}};
}

Node repeated(const std::string& out) {
  const auto flag = [](const char* name) { return value(name, {}, DataType::boolean); };
  const auto step =
      body("body", {Node("Add", "step", {"carried", "a"}, {"next"}), Node("Identity", "", {"go"}, {"going"})},
           {flag("going"), value("next")}, {value("i", {}, DataType::int64), flag("go"), value("carried")});
  return {"Loop", "loop", {"times", "", "a"}, {out}, {step}};
}

Model unfolded(std::vector<Node> nodes) {
  auto model = make_model(std::move(nodes), {}, 17,
                          {value("x"), value("flag", {}, DataType::boolean), value("times", {}, DataType::int64)});
  unfold(model);
  return model;
}

std::vector<Node> folded(const Model& model) { return onnx::fold_bodies(model).nodes; }

std::vector<onnx::Graph> bodies_in(const Model& model, const Node& node) { return read_bodies(model, node); }

TEST(UnfoldedBodies, StandInTheMainGraphUnderNamesOfTheirOwn) {
  const auto model = unfolded({Node("Neg", "", {"x"}, {"a"}), branching("choose", "a", "y")});
  EXPECT_EQ(op_types(model), (Names{"Neg", "Add", "Mul", "If"}));
  const auto& nodes = model.graph.nodes;
  EXPECT_EQ(nodes[1].inputs(), (Names{"a", "c"}));
  EXPECT_EQ(nodes[2].name(), "choose/else_branch/work");
  EXPECT_EQ(nodes[2].inputs(), (Names{"a", "choose/else_branch/c"}));
  EXPECT_EQ(nodes[3].inputs(), (Names{"flag", "made", "choose/else_branch/made"}));
  EXPECT_EQ(initializer_names(model), (Names{"c", "choose/else_branch/c"}));
  EXPECT_EQ(onnx::body_of_nodes(model), (std::vector{0, 1, 2, 0}));
  EXPECT_EQ(cuts_inside_bodies(model), (std::vector{false, false, true, true, false}));
  EXPECT_NO_THROW(Index{model});
}

TEST(UnfoldedBodies, AreFoldedBack) {
  const auto model = unfolded({Node("Neg", "", {"x"}, {"a"}), branching("choose", "a", "y")});
  const auto nodes = folded(model);
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes[1].inputs(), Names{"flag"});
  const auto bodies = bodies_in(model, nodes[1]);
  ASSERT_EQ(bodies.size(), 2U);
  EXPECT_EQ(bodies[0].nodes.at(0).op_type(), "Add");
  EXPECT_EQ(bodies[1].nodes.at(0).op_type(), "Mul");
  EXPECT_EQ(bodies[1].outputs.at(0).name, "choose/else_branch/made");
  EXPECT_EQ(bodies[1].outputs.at(0).type, DataType::float32);
}

TEST(UnfoldedBodies, HaveTheirInputsMadeByANode) {
  auto model = unfolded({Node("Neg", "", {"x"}, {"a"}), repeated("y")});
  EXPECT_EQ(op_types(model), (Names{"Neg", onnx::kBodyInputs, "Add", "Identity", "Loop"}));
  EXPECT_EQ(model.graph.nodes[1].outputs(), (Names{"i", "go", "carried"}));
  EXPECT_EQ(model.graph.nodes[4].inputs(), (Names{"times", "", "a", "going", "next"}));
  EXPECT_TRUE(depends_on_input(model, Index(model))[3]);
  model.graph.nodes[1].set_output(2, "carried@raw");
  model.graph.nodes.insert(model.graph.nodes.begin() + 2, Node("Tap", "", {"carried@raw"}, {"carried"}));
  const auto nodes = folded(model);
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes[1].inputs(), (Names{"times", "", "a"}));
  const auto body = bodies_in(model, nodes[1]).at(0);
  EXPECT_EQ(body.inputs.at(2).name, "carried@raw");
  EXPECT_EQ(body.nodes.at(0).op_type(), "Tap");
  EXPECT_EQ(body.outputs.at(1).name, "next");
}

TEST(UnfoldedBodies, MakeTheirOutputsThemselves) {
  auto model = unfolded({Node("Neg", "", {"x"}, {"a"}), branching("choose", "a", "y")});
  model.graph.nodes[3].set_input(1, "a");
  const auto body = bodies_in(model, folded(model)[1]).at(0);
  ASSERT_EQ(body.nodes.size(), 2U);
  EXPECT_EQ(body.nodes[1].op_type(), "Identity");
  EXPECT_EQ(body.nodes[1].inputs(), Names{"a"});
  EXPECT_EQ(body.outputs.at(0).name, body.nodes[1].outputs()[0]);
}

TEST(UnfoldedBodies, RepeatDequantizersOfOutsideValues) {
  auto model = unfolded({Node("Neg", "", {"x"}, {"a"}), branching("choose", "b", "y")});
  model.graph.nodes.insert(model.graph.nodes.begin() + 1, Node("DequantizeLinear", "dq", {"a", "s"}, {"b"}));
  const auto nodes = folded(model);
  ASSERT_EQ(nodes.size(), 2U);
  for (const auto& body : bodies_in(model, nodes[1])) {
    ASSERT_EQ(body.nodes.size(), 2U);
    EXPECT_EQ(body.nodes[0].op_type(), "DequantizeLinear");
    EXPECT_EQ(body.nodes[1].inputs()[0], body.nodes[0].outputs()[0]);
  }
}

TEST(UnfoldedBodies, TakeInNewNodesThatReadTheirValues) {
  auto model = unfolded({Node("Neg", "", {"x"}, {"a"}), branching("choose", "a", "y")});
  model.graph.nodes.insert(model.graph.nodes.begin() + 2, Node("Abs", "", {"made"}, {"more"}));
  model.graph.nodes.insert(model.graph.nodes.begin() + 1, Node("Abs", "", {"a"}, {"early"}));
  EXPECT_EQ(onnx::body_of_nodes(model), (std::vector{0, 0, 1, 1, 2, 0}));
  model.graph.nodes.push_back(Node("Add", "", {"made", "choose/else_branch/made"}, {"both"}));
  expect_error([&] { (void)onnx::body_of_nodes(model); }, "two bodies", ErrorKind::internal);
}

TEST(UnfoldedBodies, CountAsTheGraphAroundThemWhereTheirNodeIsMissing) {
  auto model = unfolded({Node("Neg", "", {"x"}, {"a"}), branching("choose", "a", "y")});
  model.graph.nodes.pop_back();
  EXPECT_EQ(onnx::body_of_nodes(model), (std::vector{0, 0, 0}));
}

TEST(UnfoldedBodies, NestAndSurviveTheFile) {
  const auto inner = branching("inner", "a", "z");
  const auto outer = body("then_branch", {inner, Node("Neg", "", {"z"}, {"made"})}, {value("made")});
  const auto other = body("else_branch", {Node("Neg", "", {"a"}, {"made"})}, {value("made")});
  auto model = unfolded({Node("Neg", "", {"x"}, {"a"}), Node("If", "outer", {"flag"}, {"y"}, {outer, other})});
  EXPECT_EQ(op_types(model), (Names{"Neg", "Add", "Mul", "If", "Neg", "Neg", "If"}));
  EXPECT_EQ(model.graph.nodes[3].name(), "inner");
  EXPECT_EQ(onnx::body_of_nodes(model), (std::vector{0, 2, 3, 1, 1, 4, 0}));
  auto again = make_model(folded(model));
  unfold(again);
  EXPECT_EQ(op_types(again), op_types(model));
  EXPECT_EQ(onnx::encode_model(again, nullptr).size() > 0, true);
}

// The second output's shape is stated by the model.
Node scanned() {
  const auto step = body("body", {Node("Add", "step", {"h", "piece"}, {"next"}), Node("Neg", "", {"next"}, {"row"})},
                         {onnx::make_value_info("next", DataType::float32, std::nullopt), value("row", {7})},
                         {value("h"), value("piece")});
  return {"Scan", "scan", {"a", "x"}, {"y", "rows"}, {step, onnx::Attribute::of_int("num_scan_inputs", 1)}};
}

TEST(UnfoldedBodies, OfScansStateTheRanksOfTheirOutputs) {
  auto model = unfolded({Node("Neg", "", {"x"}, {"a"}), scanned()});
  EXPECT_EQ(op_types(model), (Names{"Neg", onnx::kBodyInputs, "Add", "Neg", "Scan"}));
  EXPECT_EQ(model.graph.nodes[4].inputs(), (Names{"a", "x", "next", "row"}));
  EXPECT_EQ(state_scan_ranks(model, {}), std::vector{1});
  EXPECT_FALSE(model.bodies[0].outputs[0].shape);
  const std::vector<onnx::Dim> none;
  EXPECT_EQ(state_scan_ranks(model, {{"next", {DataType::float32, none}}}), std::vector{1}) << "an unknown rank";
  EXPECT_TRUE(state_scan_ranks(model, {{"next", {DataType::float32, {{{3, ""}, {-1, "N"}}}}}}).empty());
  const auto body = bodies_in(model, folded(model)[1]).at(0);
  ASSERT_TRUE(body.outputs.at(0).shape);
  ASSERT_EQ(body.outputs[0].shape->size(), 2U);
  EXPECT_FALSE(body.outputs[0].shape->front().is_static()) << "other samples may have other sizes";
  EXPECT_EQ(body.outputs[1].shape->front().value, 7);
}

// What the runtime tells as a scalar may be one, or have an unknown rank: the values around the body tell more.
TEST(UnfoldedBodies, OfScansHaveRanksByTheValuesAroundThem) {
  const auto unknown = [](const char* name) { return onnx::make_value_info(name, DataType::float32, std::nullopt); };
  const auto step =
      body("body", {Node("Add", "step", {"h", "piece"}, {"next"}), Node("ReduceMax", "", {"next"}, {"most"})},
           {unknown("next"), unknown("most")}, {value("h"), value("piece")});
  const std::vector<onnx::Dim> none, row{{7, ""}};
  const Node scan{"Scan", "scan", {"a", "x"}, {"y", "mosts"}, {step, onnx::Attribute::of_int("num_scan_inputs", 1)}};
  const ValueTypes told{
      {"next", {DataType::float32, none}}, {"most", {DataType::float32, none}}, {"mosts", {DataType::float32, row}}};
  auto model = unfolded({Node("Neg", "", {"x"}, {"a"}), scan});
  EXPECT_EQ(state_scan_ranks(model, told), std::vector{1}) << "of the state";
  ASSERT_TRUE(model.bodies[0].outputs[1].shape);
  EXPECT_TRUE(model.bodies[0].outputs[1].shape->empty());
  auto with_first = told;
  with_first["a"] = {DataType::float32, row};
  EXPECT_TRUE(state_scan_ranks(model, with_first).empty());
  EXPECT_EQ(model.bodies[0].outputs[0].shape->size(), 1U);
  auto constant = unfolded({scan});
  constant.graph.initializers.push_back(onnx::make_tensor<float>("a", DataType::float32, {}, std::vector{0.0F}));
  EXPECT_TRUE(state_scan_ranks(constant, told).empty());
  EXPECT_TRUE(constant.bodies[0].outputs[0].shape->empty());
}

TEST(UnfoldedBodies, OfScansOfOpset8StayWhole) {
  auto model = make_model({scanned()}, {}, 8, {value("a"), value("x")});
  unfold(model);
  EXPECT_EQ(op_types(model), Names{"Scan"});
}

TEST(UnfoldedBodies, StayWholeWhereTheyCannotBeUnfolded) {
  const Node custom("Choose", "own", {"flag"}, {"y"}, {body("g", {Node("Neg", "", {"x"}, {"made"})}, {value("made")})},
                    "own");
  const auto model = unfolded({custom});
  EXPECT_EQ(op_types(model), Names{"Choose"});
  EXPECT_TRUE(model.bodies.empty());
}

// Which values decide how many elements others have, in small graphs.

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

// Which nodes of small graphs make features of sound before a network learns anything.

Names front_end_names(std::vector<Node> nodes, FrontEnds which = FrontEnds::all) {
  const auto model = make_model(std::move(nodes),
                                {floats("w", {2, 2}, {1, 2, 3, 4}), floats("two", {}, {2}), floats("third", {}, {0.3F}),
                                 floats("half", {}, {0.5F}), floats("small", {}, {1e-6F})});
  Names names;
  for (const auto n : front_end(model, Index(model), which)) names.push_back(model.graph.nodes[n].name());
  return names;
}

std::vector<Node> spectrum() {
  return {{"MatMul", "transform", {"x", "w"}, {"bins"}},
          {"Pow", "square", {"bins", "two"}, {"powers"}},
          {"MatMul", "filters", {"powers", "w"}, {"bands"}}};
}

std::vector<Node> with(std::vector<Node> nodes, const std::vector<Node>& more) {
  nodes.insert(nodes.end(), more.begin(), more.end());
  return nodes;
}

const Names kWhole{"transform", "square", "filters", "add", "end"};

TEST(FrontEnd, EndsWithALogarithm) {
  const auto nodes = with(spectrum(), {{"Add", "add", {"bands", "small"}, {"sums"}},
                                       {"Log", "end", {"sums"}, {"z"}},
                                       {"MatMul", "first", {"z", "w"}, {"y"}}});
  EXPECT_EQ(front_end_names(nodes), kWhole);
  EXPECT_EQ(front_end_names(nodes, FrontEnds::logarithms), kWhole);
}

TEST(FrontEnd, EndsWithABoundedLogarithm) {
  const auto nodes = with(spectrum(), {{"Clip", "bound", {"bands", "small"}, {"c"}}, {"Log", "end", {"c"}, {"y"}}});
  EXPECT_EQ(front_end_names(nodes), (Names{"transform", "square", "filters", "bound", "end"}));
}

TEST(FrontEnd, EndsWithAPowerThatIsNoRoot) {
  const auto power = [](const char* exponent) {
    return with(spectrum(), {{"Add", "add", {"bands", "small"}, {"sums"}}, {"Pow", "end", {"sums", exponent}, {"y"}}});
  };
  EXPECT_EQ(front_end_names(power("third"), FrontEnds::logarithms), kWhole);
  EXPECT_TRUE(front_end_names(power("half")).empty());
  EXPECT_TRUE(front_end_names(power("two")).empty());
}

TEST(FrontEnd, EndsWithADivisionByWhatVaries) {
  const std::vector<Node> normalization{{"ReduceMean", "mean", {"bands"}, {"m"}},
                                        {"Div", "end", {"bands", "m"}, {"y"}}};
  EXPECT_EQ(front_end_names(with(spectrum(), normalization)), (Names{"transform", "square", "filters", "mean", "end"}));
  EXPECT_TRUE(front_end_names(with(spectrum(), normalization), FrontEnds::logarithms).empty());
  EXPECT_TRUE(front_end_names(with(spectrum(), {{"Div", "end", {"bands", "two"}, {"y"}}})).empty());
}

TEST(FrontEnd, IsNotWhatALayerLearns) {
  // Behind a Relu, the second product is one of a network; nothing leads from the first to the logarithm without it.
  const auto nodes = std::vector<Node>{{"MatMul", "first", {"x", "w"}, {"a"}},
                                       {"Relu", "relu", {"a"}, {"b"}},
                                       {"MatMul", "second", {"b", "w"}, {"c"}},
                                       {"Log", "end", {"c"}, {"y"}}};
  EXPECT_TRUE(front_end_names(nodes).empty());
  EXPECT_TRUE(front_end_names({{"MatMul", "first", {"x", "w"}, {"a"}},
                               {"Exp", "exp", {"a"}, {"b"}},
                               {"Add", "add", {"b", "small"}, {"c"}},
                               {"Log", "softplus", {"c"}, {"y"}}})
                  .empty());
  EXPECT_TRUE(
      front_end_names({{"Add", "add", {"x", "small"}, {"c"}}, {"Log", "end", {"c"}, {"y"}}}).empty());  // no product
}

TEST(FrontEnd, HasFiltersThatNodesMake) {
  const auto nodes = std::vector<Node>{{"Sigmoid", "made", {"w"}, {"filter"}},
                                       {"MatMul", "transform", {"x", "filter"}, {"a"}},
                                       {"Log", "end", {"a"}, {"y"}}};
  EXPECT_EQ(front_end_names(nodes), (Names{"transform", "end"}));
}

}  // namespace
}  // namespace detent::graph::test
