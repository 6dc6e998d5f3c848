// How names and what goes with them grow where bodies and functions are unfolded: with the depth, never by doubling.
#include <gtest/gtest.h>

#include "graph/support.h"
#include "onnx/functions.h"

namespace detent::graph::test {
namespace {

using onnx::test::Msg;

std::size_t longest_name(const Model& model) {
  std::size_t longest = 0;
  for (const auto& node : model.graph.nodes) {
    longest = std::max(longest, node.name().size());
    for (const auto& name : node.outputs()) longest = std::max(longest, name.size());
  }
  return longest;
}

// Each reads what is around it and has the names of the one around.
Node nested(const std::string& op_type, const std::string& attribute, int depth, const std::string& name) {
  Node inner("Neg", name, {"x"}, {"y"});
  for (int i = 0; i < depth; ++i) inner = Node(op_type, name, {"x"}, {"y"}, {body(attribute, {inner}, {value("y")})});
  return inner;
}

// Functions that call the one before so many times, each with the same names.
Model calling(int depth, int calls, const std::string& name, const std::vector<Node>& innermost = {}) {
  auto model = make_model({Node("f" + std::to_string(depth), name, {"x"}, {"y"}, {}, "own")});
  model.set_opset("own", 1);
  for (int i = 0; i <= depth; ++i) {
    Msg f = Msg().text(1, "f" + std::to_string(i)).text(4, "p").text(5, "q");
    std::vector<Node> nodes = i == 0 ? innermost : std::vector<Node>();
    for (int c = 0; i > 0 && c < calls; ++c) {
      const auto number = std::to_string(c);
      nodes.emplace_back("f" + std::to_string(i - 1), name, Names{c == 0 ? "p" : "t" + std::to_string(c - 1)},
                         Names{"t" + number}, std::vector<Attribute>(), "own");
    }
    const auto last = nodes.empty() ? std::string("p") : nodes.back().outputs().front();
    nodes.emplace_back("Neg", name, Names{last}, Names{"q"});
    for (const auto& node : nodes) f.text(7, node.encode().view());
    f.text(10, "own");
    model.other.push_back(onnx::string_field(onnx::kFunctionField, f.bytes));
    model.functions.push_back("own::f" + std::to_string(i));
  }
  return model;
}

class Holders : public ::testing::TestWithParam<std::pair<const char*, const char*>> {};

TEST_P(Holders, NestWithNamesThatGrowWithTheDepth) {
  const auto [op_type, attribute] = GetParam();
  for (const int depth : {1, 8, 30, 60}) {
    auto model = make_model({nested(op_type, attribute, depth, "same")});
    unfold(model);
    EXPECT_LE(longest_name(model), 24U * static_cast<unsigned>(depth + 1));
    EXPECT_NO_THROW(Index{model});
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Holders,
                         ::testing::Values(std::pair("If", "then_branch"), std::pair("If", "else_branch"),
                                           std::pair("Loop", "body"), std::pair("Scan", "body")));

TEST(UnfoldedFunctions, NestWithNamesThatGrowWithTheDepth) {
  for (const int depth : {1, 10, 60, 95}) {
    auto model = calling(depth, 1, "same");
    unfold(model);
    EXPECT_EQ(model.graph.nodes.size(), static_cast<std::size_t>(depth) + 1);
    EXPECT_LE(longest_name(model), 8U * static_cast<unsigned>(depth + 1));
  }
}

TEST(UnfoldedFunctions, MayTakeSoMuchInAll) {
  const std::string name(1000, 'n');
  auto ordinary = calling(5, 4, "call");
  EXPECT_NO_THROW(unfold(ordinary));
  std::vector<std::pair<const char*, Model>> hostile;
  hostile.emplace_back("names", calling(5, 8, name));
  hostile.emplace_back("inputs", calling(8, 3, "call", {Node("Sum", "", Names(10'000, "p"), {"s"})}));
  std::vector<Attribute> attributes;
  for (int i = 0; i < 3000; ++i) attributes.push_back(Attribute::of_int("a" + std::to_string(i), i));
  hostile.emplace_back("attributes", calling(8, 3, "call", {Node("Neg", "", {"p"}, {"s"}, attributes)}));
  std::vector<onnx::ValueInfo> outputs(5000, value("b"));
  hostile.emplace_back(
      "outputs of bodies",
      calling(7, 3, "call",
              {Node("If", "", {"p"}, {"s"}, {body("then_branch", {Node("Neg", "", {"p"}, {"b"})}, outputs)})}));
  for (auto& [what, model] : hostile) {
    SCOPED_TRACE(what);
    expect_error([&, &model = model] { unfold(model); }, "come to more than 64.0 MiB of names");
  }
}

// With a number for each that is found at once.
TEST(UnfoldedBodies, ManyOfOneNameTakeLinearTime) {
  std::vector<Node> nodes;
  for (int i = 0; i < 30'000; ++i) {
    const std::string in = i == 0 ? "x" : "y" + std::to_string(i - 1);
    const auto branch = body("then_branch", {Node("Neg", "same", {in}, {"made"})}, {value("made")});
    nodes.push_back({"If", "same", {"x"}, {i == 29'999 ? "y" : "y" + std::to_string(i)}, {branch}});
  }
  auto model = make_model(std::move(nodes));
  unfold(model);
  EXPECT_EQ(model.graph.nodes.size(), 60'000U);
  EXPECT_LE(longest_name(model), 40U);
}

// Its body belongs to the graph that the call stands in.
TEST(UnfoldedFunctions, StayCallsWhereACallHoldsABody) {
  auto model = calling(0, 0, "call");
  model.graph.nodes[0].set_attribute(body("given", {Node("Neg", "", {"x"}, {"b"})}, {value("b")}));
  unfold(model);
  EXPECT_EQ(op_types(model), Names{"f0"});
  EXPECT_EQ(model.other.size(), 2U);  // the function, and the IR version
}

onnx::Tensor condition(const std::string& name, std::uint8_t is_true) {
  return onnx::make_tensor<std::uint8_t>(name, DataType::boolean, {}, {&is_true, 1});
}

// An If whose branches are "Neg" and "Abs" of x, or of what is around it.
Node branching(const std::string& decides, std::vector<Node> then_nodes) {
  return {"If",
          "if",
          {decides},
          {"y"},
          {body("then_branch", std::move(then_nodes), {value("t")}),
           body("else_branch", {Node("Abs", "other", {"x"}, {"e"})}, {value("e")})}};
}

std::vector<std::string> operators(const Model& model) {
  std::vector<std::string> types;
  for (const auto& node : model.graph.nodes) types.push_back(node.op_type());
  return types;
}

TEST(ConstantBranches, StandInThePlaceOfTheIf) {
  const std::vector<Node> taken{Node("Neg", "n", {"x"}, {"t"})};
  for (const bool is_true : {true, false}) {
    auto model = make_model({branching("c", taken)}, {condition("c", is_true ? 1 : 0)});
    unfold(model);
    EXPECT_EQ(operators(model), (std::vector<std::string>{is_true ? "Neg" : "Abs", "Identity"}));
    for (const auto& node : model.graph.nodes) EXPECT_EQ(node.body(), 0);
    EXPECT_EQ(model.graph.nodes.back().outputs(), Names{"y"});
    EXPECT_TRUE(model.graph.initializers.empty());
  }
}

TEST(ConstantBranches, AreFoundThroughNotAndInBodiesOfOthers) {
  const Node inner("If", "inner", {"turned"}, {"t"},
                   {body("then_branch", {Node("Neg", "n", {"x"}, {"a"})}, {value("a")}),
                    body("else_branch", {Node("Exp", "m", {"x"}, {"b"})}, {value("b")})});
  auto model = make_model({Node("Not", "not", {"c"}, {"turned"}), branching("d", {inner})}, {condition("c", 1)}, 17,
                          {value("x"), value("d", {}, DataType::boolean)});
  unfold(model);
  const auto types = operators(model);
  EXPECT_EQ(std::count(types.begin(), types.end(), "If"), 1);
  EXPECT_EQ(std::count(types.begin(), types.end(), "Neg"), 0);
  EXPECT_EQ(std::count(types.begin(), types.end(), "Exp"), 1);
  for (const auto& node : model.graph.nodes)
    EXPECT_EQ(node.body() != 0, node.is("Exp") || node.is("Identity") || node.is("Abs"));
}

TEST(ConstantBranches, ConditionsThatAreInputsDecideWhenTheModelRuns) {
  auto model = make_model({branching("c", {Node("Neg", "n", {"x"}, {"t"})})}, {condition("c", 1)}, 17,
                          {value("x"), value("c", {}, DataType::boolean)});
  unfold(model);
  EXPECT_EQ(model.graph.nodes.back().op_type(), "If");
}

}  // namespace
}  // namespace detent::graph::test
