// Which values a node may read, for every kind of graph that stands in another one.
#include "onnx/functions.h"

#include "onnx/support.h"

namespace detent::onnx::test {
namespace {

using Names = std::vector<std::string>;

Msg body_attribute(const std::string& name, const Msg& graph) {
  return attribute_head(name).sub(6, graph).varint(20, 5);
}

// A graph of nodes with an input "in", a constant "c" and outputs.
Msg body(const std::vector<Msg>& nodes, const Names& outputs) {
  Msg m;
  for (const auto& n : nodes) m.sub(1, n);
  m.text(2, "body").sub(5, tensor_head("c", DataType::float32, {1}).text(9, std::string(4, '\0')));
  m.sub(11, value_info("in"));
  for (const auto& name : outputs) m.sub(12, value_info(name));
  return m;
}

// How a body gets into a model: `whole` gives the main graph, or a function's, of the node that holds the body and of
// those beside it.
struct Kind {
  std::string name;
  std::function<Msg(const Names& inputs, const Names& outputs, const Msg& body)> holder;
  std::function<Msg(const std::vector<Msg>& nodes, const std::string& output)> whole;
};

Msg in_graph(const std::vector<Msg>& nodes, const std::string& output) {
  Msg m;
  for (const auto& n : nodes) m.sub(1, n);
  return model_of(m.text(2, "g").sub(11, value_info("x")).sub(12, value_info(output)));
}

Msg in_function(const std::vector<Msg>& nodes, const std::string& output) {
  Msg f = Msg().text(1, "f").text(4, "x").text(5, output).text(10, "own");
  for (const auto& n : nodes) f.sub(7, n);
  return in_graph({node("f", {"x"}, {"called"}).text(7, "own")}, "called").sub(25, f);
}

Msg in_body(const std::vector<Msg>& nodes, const std::string& output) {
  Msg graph = Msg().text(2, "outer").sub(12, value_info(output));
  for (const auto& n : nodes) graph.sub(1, n);
  return in_graph({node("If", {"x"}, {"outside"}, {body_attribute("then_branch", graph)})}, "outside");
}

Msg holder(const std::string& op_type, const std::string& attribute, const Names& inputs, const Names& outputs,
           const Msg& graph) {
  return node(op_type, inputs, outputs, {body_attribute(attribute, graph)}).text(3, "holder");
}

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  const std::vector<std::pair<std::string, std::string>> holders{
      {"If", "then_branch"}, {"If", "else_branch"}, {"Loop", "body"}, {"Scan", "body"}, {"Custom", "anything"}};
  const std::vector<std::pair<std::string, decltype(&in_graph)>> places{
      {"graph", in_graph}, {"function", in_function}, {"body", in_body}};
  for (const auto& [op_type, attribute] : holders) {
    for (const auto& [place, whole] : places) {
      all.push_back({op_type + "_" + attribute + "_in_" + place,
                     [op_type = op_type, attribute = attribute](const auto& i, const auto& o, const auto& b) {
                       return holder(op_type, attribute, i, o, b);
                     },
                     whole});
    }
  }
  return all;
}

class Scope : public ModelTest, public ::testing::WithParamInterface<Kind> {
 protected:
  Msg whole(const std::vector<Msg>& nodes, const std::string& output = "y") const {
    return GetParam().whole(nodes, output);
  }
  Msg holds(const std::vector<Msg>& nodes, const Names& outputs = {"made"}, const Names& inputs = {"r"}) const {
    return GetParam().holder(inputs, {"y"}, body(nodes, outputs));
  }
  void refuses(const std::vector<Msg>& nodes, const std::string& told, const std::string& output = "y") const {
    expect_error([&] { read(whole(nodes, output)); }, told);
  }
  void takes(const std::vector<Msg>& nodes) const {
    const Msg message = whole(nodes);
    EXPECT_EQ(encode_model(read(message), nullptr), message.bytes);
  }
  const Msg relu = node("Relu", {"x"}, {"r"});
  const Msg made = node("Relu", {"in"}, {"made"});
};

TEST_P(Scope, AllowsWhatStandsAround) {
  takes({relu, holds({node("Add", {"r", "x"}, {"a"}), node("Add", {"a", "c"}, {"made"})})});
  takes({relu, holds({}, {"r"})});
  takes({relu, holds({}, {"in", "in", "c"})});
}

TEST_P(Scope, AllowsNamesAgainAndAnySequence) {
  takes({relu, holds({node("Neg", {"in"}, {"r"}), node("Neg", {"r"}, {"made"})})});
  takes({relu, holds({node("Neg", {"a"}, {"made"}), node("Neg", {"in"}, {"a"})})});
  takes({holds({made}), relu});
  const Msg twin = GetParam().holder({"r"}, {"z"}, body({made}, {"made"}));
  takes({relu, holds({made}), twin});
}

TEST_P(Scope, RefusesValuesOfABodyOutsideOfIt) {
  for (const std::string name : {"made", "in", "c"}) {
    const auto told = "input '" + name + "' is a value of a body that it does not stand in";
    refuses({relu, holds({made}, {"made"}, {name})}, "'holder': " + told);
    refuses({relu, holds({made}), node("Relu", {name}, {"z"}).text(3, "after")}, "Relu 'after': " + told);
    refuses({node("Relu", {name}, {"r"}).text(3, "before"), holds({made})}, "Relu 'before': " + told);
    const Msg sibling = GetParam().holder({"r"}, {"z"}, Msg().sub(1, node("Neg", {name}, {"z2"}).text(3, "beside")));
    refuses({relu, holds({made}), sibling}, "Neg 'beside': " + told);
  }
  refuses({relu, holds({made})}, "output 'made' ", "made");
}

TEST_P(Scope, RefusesOutputsOfABodyThatAreOfOthers) {
  const Msg sibling = GetParam().holder({"r"}, {"z"}, Msg().sub(12, value_info("made")));
  refuses({relu, holds({made}), sibling}, "'holder': output 'made' of its body is a value of a body");
  refuses({relu, holds({made}, {"nowhere"})}, "'holder': output 'nowhere' of its body is not defined anywhere");
}

TEST_P(Scope, RefusesValuesThatNobodyMakes) {
  refuses({relu, holds({node("Neg", {"nowhere"}, {"made"}).text(3, "n")})}, "Neg 'n': input 'nowhere' is not defined");
}

TEST_P(Scope, RefusesValuesMadeOfThemselves) {
  refuses({relu, holds({node("Neg", {"y"}, {"made"})})}, "'holder': the graph has a cycle: 'y'");
  refuses({relu, holds({made, node("Neg", {"y"}, {"unread"})})}, "'holder': the graph has a cycle: 'y'");
  refuses({relu, holds({made, node("Neg", {"b"}, {"a"}).text(3, "n"), node("Neg", {"a"}, {"b"}).text(3, "n")})},
          "Neg 'n': the graph has a cycle");
  refuses({holds({node("Neg", {"z"}, {"made"})}), relu, node("Neg", {"y"}, {"z"})}, "the graph has a cycle");
}

TEST_P(Scope, RefusesNamesDefinedTwiceInOneGraph) {
  refuses({relu, holds({made, node("Neg", {"in"}, {"made"}).text(3, "n")})}, "Neg 'n': output 'made' is already");
  for (const std::string name : {"in", "c"})
    refuses({relu, holds({made, node("Neg", {"in"}, {name}).text(3, "n")})}, "Neg 'n': output '" + name + "' is");
}

TEST_P(Scope, RefusesWhatCouldBeEitherOfTwoValues) {
  refuses({relu, holds({node("Neg", {"r"}, {"made"}).text(3, "n"), node("Neg", {"in"}, {"r"})})},
          "Neg 'n': input 'r' is read before its own graph defines it");
}

INSTANTIATE_TEST_SUITE_P(Kinds, Scope, ::testing::ValuesIn(kinds()), [](const auto& kind) { return kind.param.name; });

using ScopeOfTwoBodies = ModelTest;

// ONNX Runtime hands a value that one branch reads to both, and computes with it in place of the constant.
TEST_F(ScopeOfTwoBodies, AConstantHasNoNameThatTheOtherReadsFromAround) {
  const auto model = [](const std::string& around, const Msg& other) {
    const Msg constant = body({node("Neg", {"c"}, {"made"})}, {"made"});
    const Msg both =
        node("If", {"x"}, {"y"}, {body_attribute("then_branch", constant), body_attribute("else_branch", other)});
    return in_graph({node("Relu", {"x"}, {around}), Msg(both).text(3, "both")}, "y");
  };
  const Msg reads = Msg().sub(1, node("Neg", {"c"}, {"b"})).sub(12, value_info("b"));
  const Msg deeper =
      Msg().sub(1, node("If", {"x"}, {"b"}, {body_attribute("then_branch", reads)})).sub(12, value_info("b"));
  for (const auto& other : {reads, deeper, Msg().sub(12, value_info("c"))})
    expect_error(
        [&] { read(model("c", other)); },
        "If 'both': one of its bodies has a constant 'c', and another reads the value of that name around them");
  EXPECT_NO_THROW(read(model("c", body({node("Neg", {"c"}, {"b"})}, {"b"}))));
  EXPECT_NO_THROW(read(model("c", Msg().sub(1, node("Neg", {"x"}, {"b"})).sub(12, value_info("b")))));
}

using ScopeOfFunctions = ModelTest;

TEST_F(ScopeOfFunctions, SeeNothingAroundThem) {
  const auto model = [](const Msg& function) {
    return in_graph({node("Relu", {"x"}, {"r"}), node("f", {"r"}, {"y"}).text(7, "own")}, "y").sub(25, function);
  };
  const Msg head = Msg().text(1, "f").text(4, "p").text(5, "q").text(10, "own");
  EXPECT_NO_THROW(read(model(Msg(head).sub(7, node("Neg", {"p"}, {"q"})))));
  const Msg outer = node("Add", {"p", "r"}, {"q"}).text(3, "n");
  expect_error([&] { read(model(Msg(head).sub(7, outer))); }, "function 'f', node Add 'n': input 'r' is not defined");
  expect_error([&] { read(model(head)); }, "function 'f', output 'q' is not defined");
}

TEST_F(ScopeOfFunctions, AndOfBodiesAreCheckedInLinearTime) {
  Msg graph = Msg().text(2, "wide").sub(12, value_info("v49999"));
  for (int i = 0; i < 50'000; ++i) {
    const auto name = "v" + std::to_string(i);
    const Msg branch =
        Msg().sub(1, node("Neg", {i == 0 ? "x" : "v" + std::to_string(i - 1)}, {"a"})).sub(12, value_info("a"));
    graph.sub(1, node("If", {"x"}, {name}, {body_attribute("then_branch", branch)}));
  }
  EXPECT_NO_THROW(read(in_graph({node("If", {"x"}, {"y"}, {body_attribute("then_branch", graph)})}, "y")));
}

}  // namespace
}  // namespace detent::onnx::test
