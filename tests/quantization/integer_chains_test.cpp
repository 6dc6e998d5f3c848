#include "quantization/placement/value_kinds.h"

#include <gtest/gtest.h>

#include <set>

#include "quantization/placement/selection.h"
#include "quantization/support.h"

namespace detent::quantization {
namespace {

using testing::Builder;
using testing::find;

FloatParts chains(const Builder& b) {
  return integer_chains(b.model, graph::Index(b.model), select_nodes(b.model, {}));
}

// Names of the nodes that compute on integers.
std::set<std::string> kept(const Builder& b) {
  const auto floats = chains(b);
  std::set<std::string> names;
  for (std::size_t n = 0; n < floats.nodes.size(); ++n) {
    if (!floats.nodes[n]) names.insert(b.model.graph.nodes[n].name());
  }
  return names;
}

Builder& conv(Builder& b, const std::string& in, const std::string& out) {
  return b.constant("w_" + out, {4, 4, 1, 1}).node("Conv", {in, "w_" + out}, {out});
}

TEST(IntegerChains, AResidualBlockStaysInIntegers) {
  Builder b;
  b.input("x");
  conv(b, "x", "a");
  b.node("Relu", {"a"}, {"r"});
  conv(b, "r", "c");
  b.node("Add", {"c", "r"}, {"s"}).node("MaxPool", {"s"}, {"m"});
  conv(b, "m", "y").output("y");
  EXPECT_EQ(kept(b), (std::set<std::string>{"n_a", "n_r", "n_c", "n_s", "n_m", "n_y"}));
}

TEST(IntegerChains, GatesSoftmaxAndArithmeticWithConstantsStayInFloat) {
  Builder b;
  b.input("x").constant("k", {1});
  conv(b, "x", "a");
  b.node("Sigmoid", {"a"}, {"g"}).node("Mul", {"a", "g"}, {"silu"});
  conv(b, "silu", "c");
  b.node("Add", {"c", "k"}, {"shifted"});
  conv(b, "shifted", "d");
  b.node("Softmax", {"d"}, {"y"}).output("y");
  EXPECT_EQ(kept(b), (std::set<std::string>{"n_a", "n_c", "n_d"}));
}

Builder& silu(Builder& b, const std::string& in, const std::string& out) {
  return b.node("Sigmoid", {in}, {"gate_" + out}).node("Mul", {in, "gate_" + out}, {out});
}

TEST(Gates, AreFoundBehindConvolutions) {
  Builder b;
  b.input("x").constant("k", {1}).constant("rows", {4, 1, 1}).constant("w", {4, 4});
  silu(b, "x", "of_input");
  conv(b, "of_input", "a");
  silu(b, "a", "s").node("Add", {"k", "s"}, {"shifted"});
  conv(b, "shifted", "c").node("HardSigmoid", {"c"}, {"h"}).node("Mul", {"h", "c"}, {"hard"});
  b.node("Add", {"hard", "rows"}, {"other"});
  conv(b, "other", "d").node("Sigmoid", {"d"}, {"seen"}).node("Mul", {"d", "seen"}, {"e"}).output("seen");
  b.node("MatMul", {"e", "w"}, {"m"});
  silu(b, "m", "y").output("y");
  const graph::Index index(b.model);
  EXPECT_EQ(all_gates(b.model, index), (GateNames{"gate_s", "h"}));
  const auto gates = find_gated_activations(b.model, index);
  const auto& nodes = b.model.graph.nodes;
  ASSERT_EQ(gates.size(), 2U);
  EXPECT_EQ(nodes[static_cast<std::size_t>(gates[0].sum)].name(), "n_shifted");
  EXPECT_EQ(nodes[static_cast<std::size_t>(gates[1].product)].name(), "n_hard");
  EXPECT_EQ(gates[1].sum, graph::kNone);
}

TEST(IntegerChains, GatesThatAreNamedCarryIntegers) {
  Builder b;
  b.input("x").constant("k", {1});
  conv(b, "x", "a");
  silu(b, "a", "s").node("Add", {"s", "k"}, {"shifted"});
  conv(b, "shifted", "c");
  silu(b, "c", "t");
  conv(b, "t", "d");
  silu(b, "d", "y").output("y");  // which no product reads
  const auto floats = integer_chains(b.model, graph::Index(b.model), select_nodes(b.model, {}), {"gate_s", "gate_y"});
  std::set<std::string> in_float;
  for (std::size_t n = 0; n < floats.nodes.size(); ++n) {
    if (floats.nodes[n]) in_float.insert(b.model.graph.nodes[n].name());
  }
  EXPECT_EQ(in_float, (std::set<std::string>{"n_gate_t", "n_t", "n_gate_y", "n_y"}));
  const auto placement = place(b.model, b.types, preset_config("balanced"), floats);
  EXPECT_EQ(placement.fixed_ranges.at("gate_s").max, 1);
  EXPECT_NE(find(placement, "k"), nullptr);
}

TEST(IntegerChains, WhatNoProductReadsStaysInFloatButForTheActivationOfAConvolution) {
  Builder b;
  b.input("x");
  conv(b, "x", "a");
  b.node("Relu", {"a"}, {"r"}).node("Concat", {"r", "a"}, {"both"}).node("Sigmoid", {"both"}, {"y"}).output("y");
  EXPECT_EQ(kept(b), (std::set<std::string>{"n_a"})) << "the Relu is not the only reader";
  Builder alone;
  alone.input("x");
  conv(alone, "x", "a");
  alone.node("Relu", {"a"}, {"r"}).node("Sigmoid", {"r"}, {"y"}).output("y");
  EXPECT_EQ(kept(alone), (std::set<std::string>{"n_a", "n_r"}));
}

TEST(IntegerChains, ResultsOfMatrixProductsAreIntegersOnlyForProducts) {
  Builder b;
  b.input("x").constant("w", {4, 4}).constant("v", {4, 4}).constant("u", {4, 4});
  b.node("MatMul", {"x", "w"}, {"a"}).node("Transpose", {"a"}, {"t"}).node("MatMul", {"t", "v"}, {"c"});
  b.node("Erf", {"c"}, {"e"}).node("MatMul", {"e", "u"}, {"y"}).output("y");
  const auto floats = chains(b);
  EXPECT_EQ(floats.values, (std::set<std::string>{"c", "y"}));
  const auto placement = place(b.model, b.types, {}, floats);
  EXPECT_NE(find(placement, "a"), nullptr);
  EXPECT_NE(find(placement, "t"), nullptr);
  EXPECT_EQ(find(placement, "c"), nullptr);
  EXPECT_EQ(find(placement, "y"), nullptr);
}

TEST(IntegerChains, WhatAFloatNodeMadeIsReadAsItIsByFloatNodes) {
  Builder b;
  b.input("x").constant("w", {4, 4});
  b.node("Erf", {"x"}, {"e"}).node("MatMul", {"e", "w"}, {"m"}).node("Add", {"m", "e"}, {"y"}).output("y");
  const auto placement = place(b.model, b.types, {}, chains(b));
  ASSERT_NE(find(placement, "e"), nullptr);
  EXPECT_TRUE(find(placement, "e")->float_readers_unrounded);
  Assignment assignment{placement, {}, {}};
  for (const auto& mark : placement.marks)
    assignment.values[mark.value] = {QuantType::uint8, {}, {{1.0F, 128}}, mark.value, {0, 255}, {}};
  const auto model = emit_qdq(b.model, assignment, {}).model;
  for (const auto& node : model.graph.nodes) {
    if (node.op_type() == "Add") {
      EXPECT_EQ(node.inputs()[1], "e");
    }
    if (node.op_type() == "MatMul") {
      EXPECT_EQ(node.inputs()[0], "e_DequantizeLinear_Output");
    }
  }
}

TEST(IntegerChains, TablesAreKept) {
  Builder b;
  b.input("i").type("i", onnx::DataType::int64).constant("table", {10, 4}).constant("w", {4, 4});
  b.node("Gather", {"table", "i"}, {"rows"}).node("Erf", {"rows"}, {"e"}).node("MatMul", {"e", "w"}, {"y"}).output("y");
  EXPECT_EQ(kept(b), (std::set<std::string>{"n_rows", "n_y"}));
}

}  // namespace
}  // namespace detent::quantization
