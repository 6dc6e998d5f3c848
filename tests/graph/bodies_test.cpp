// Bodies unfolded into the main graph, and folded again when the model is written.
#include "graph/index.h"

#include <gtest/gtest.h>

#include "graph/support.h"
#include "onnx/bodies.h"
#include "onnx/functions.h"
#include "onnx/write.h"

namespace detent::graph::test {
namespace {

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

}  // namespace
}  // namespace detent::graph::test
