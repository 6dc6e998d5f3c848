#include "run/model/proposals.h"

#include <gtest/gtest.h>

#include <cmath>

#include "exec/support.h"
#include "quantization/placement/selection.h"
#include "quantization/placement/value_kinds.h"
#include "quantization/support.h"

namespace detent::run {
namespace {

using quantization::testing::Builder;

Builder& conv(Builder& b, const std::string& in, const std::string& out) {
  return b.constant("w_" + out, {4, 4, 1, 1}).node("Conv", {in, "w_" + out}, {out});
}

std::map<std::string, calibration::Response> found(const Builder& b) {
  const auto chains =
      quantization::integer_chains(b.model, graph::Index(b.model), quantization::select_nodes(b.model, {}));
  const auto placement = quantization::place(b.model, b.types, {}, chains);
  auto model = b.model;
  model.set_ir_version(8);
  return consumer_functions(model, b.types, placement, exec::test::runtime());
}

double silu(double x) { return x / (1 + std::exp(-x)); }

TEST(Responses, AGateIsAFunctionOfTheValue) {
  Builder b;
  conv(b.input("x"), "x", "a").node("Sigmoid", {"a"}, {"g"}).node("Mul", {"a", "g"}, {"s"});
  conv(b, "s", "y").output("y");
  const auto all = found(b);
  ASSERT_EQ(all.size(), 1);
  for (const double x : {-30.0, -5.0, -1.0, 0.0, 0.4, 12.0}) EXPECT_NEAR(all.at("a")(x), silu(x), 1e-3) << x;
}

TEST(Responses, ScalarConstantsTakePart) {
  Builder b;  // a decomposed HardSwish
  b.constant("three", {}, {3}).constant("six", {1}, {6}).constant("zero", {}, {0});
  conv(b.input("x"), "x", "a").node("Add", {"a", "three"}, {"t"}).node("Clip", {"t", "zero", "six"}, {"c"});
  b.node("Div", {"c", "six"}, {"d"}).node("Mul", {"a", "d"}, {"h"});
  conv(b, "h", "y").output("y");
  const auto all = found(b);
  ASSERT_EQ(all.size(), 1);
  EXPECT_EQ(all.at("a")(-4), 0);
  EXPECT_NEAR(all.at("a")(1), 2.0 / 3, 1e-5);
  EXPECT_NEAR(all.at("a")(7), 7, 1e-5);
}

TEST(Responses, NoneWhereAnotherReaderSeesTheValueAsItIs) {
  Builder b;
  conv(b.input("x"), "x", "a").node("Sigmoid", {"a"}, {"g"}).node("Mul", {"a", "g"}, {"s"});
  conv(b, "s", "c").node("Add", {"c", "a"}, {"y"}).output("y");
  EXPECT_FALSE(found(b).contains("a"));
}

TEST(Responses, NoneWhereTwoValuesComeOut) {
  Builder b;
  conv(b.input("x"), "x", "a").node("Sigmoid", {"a"}, {"g"}).node("Mul", {"a", "g"}, {"s"});
  conv(b, "s", "c").node("Mul", {"c", "g"}, {"y"}).output("y");
  EXPECT_FALSE(found(b).contains("a"));
}

TEST(Responses, NoneWhereConstantsDifferFromChannelToChannel) {
  Builder b;
  b.constant("slopes", {4, 1, 1});
  conv(b.input("x"), "x", "a").node("Mul", {"a", "slopes"}, {"m"}).node("Tanh", {"m"}, {"t"});
  conv(b, "t", "y").output("y");
  EXPECT_FALSE(found(b).contains("a"));
}

}  // namespace
}  // namespace detent::run
