#include "quantization/placement/selection.h"

#include <gtest/gtest.h>

#include "calibration/support.h"
#include "quantization/assignment.h"
#include "support.h"

namespace detent::quantization {
namespace {

using testing::Builder;
using testing::config;
using testing::kind;
using Names = std::vector<std::string>;

std::string source_of(const Builder& b, const std::string& value, const Names& added = {}) {
  const auto types = passthrough_types(b.model, config([&](auto& c) { c.passthrough_op_types = added; }));
  return statistics_source(b.model, graph::Index(b.model), b.types, types, value);
}

// What MatMul reads has gone through a few operators that move values.
Builder moved() {
  Builder b;
  b.input("x").integers("shape", {-1, 4}).constant("w", {4, 4});
  b.node("Reshape", {"x", "shape"}, {"r"}).node("Transpose", {"r"}, {"t"}).node("MatMul", {"t", "w"}, {"m"});
  return b.node("Relu", {"m"}, {"y"}).output("y");
}

TEST(Passthrough, FollowsOperatorsThatMoveEachValueToOnePlace) {
  for (const char* op : {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "DepthToSpace", "SpaceToDepth"}) {
    Builder b;
    b.input("x").node("Relu", {"x"}, {"a"}).node(op, {"a"}, {"b"}).node("Reshape", {"b"}, {"c"});
    EXPECT_EQ(source_of(b, "b"), "a") << op;
    EXPECT_EQ(source_of(b, "c"), "a") << op;
    EXPECT_EQ(source_of(b, "a"), "a") << op;
    EXPECT_EQ(source_of(b, "x"), "x") << op;
  }
}

TEST(Passthrough, StopsAtWhatChangesOrDropsValues) {
  for (const char* op : {"Relu", "MaxPool", "AveragePool", "Gather", "Slice", "Concat", "Expand", "Resize", "Pad"}) {
    Builder b;
    b.input("x").node("Neg", {"x"}, {"a"}).node(op, {"a"}, {"b"});
    EXPECT_EQ(source_of(b, "b"), "b") << op;
    EXPECT_EQ(source_of(b, "b", {op}), "a") << op << " when asked for";
  }
}

TEST(Passthrough, StopsAtConstantsAndOtherTypes) {
  Builder b;
  b.input("x").constant("k", {2, 2}).node("Reshape", {"k", "x"}, {"a"});
  b.input("i").type("i", onnx::DataType::int64).node("Transpose", {"i"}, {"t"});
  EXPECT_EQ(source_of(b, "a"), "a");
  EXPECT_EQ(source_of(b, "t"), "t");
  Builder other;
  other.input("x");
  other.model.graph.nodes.emplace_back("Reshape", "n", Names{"x"}, Names{"y"}, std::vector<onnx::Attribute>(),
                                       "my.domain");
  EXPECT_EQ(source_of(other, "y"), "y");
}

TEST(Passthrough, UnknownTypesAreRefused) {
  try {
    source_of(moved(), "t", {"MaxPoool"});
    ADD_FAILURE() << "a misspelt type was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("--set passthrough-op-types: 'test.onnx' has no node of type 'MaxPoool'"),
              std::string::npos)
        << e.what();
  }
}

TEST(Passthrough, OnlySourcesAreObserved) {
  const auto placement = moved().place();
  EXPECT_EQ(kind(placement, "t"), "activation");
  EXPECT_EQ(placement.source_of("t"), "x");
  EXPECT_EQ(placement.source_of("y"), "y");
  EXPECT_EQ(placement.to_observe(), (Names{"x", "y"}));
  // Two that have one source are observed once.
  Builder twice = moved();
  twice.node("Squeeze", {"x"}, {"z"}).node("MatMul", {"z", "w"}, {"n"}).output("n");
  EXPECT_EQ(twice.place().to_observe(), (Names{"x", "y", "n"}));
  const auto relu = moved().place(config([](auto& c) { c.passthrough_op_types = {"Relu", "MatMul"}; }));
  EXPECT_EQ(relu.to_observe(), (Names{"x"}));
}

TEST(Passthrough, RangesAreThoseOfTheSource) {
  const auto placement = moved().place();
  calibration::Statistics statistics;
  statistics.tensors["x"] = calibration::test::summary_of({-3, 1, 2});
  statistics.tensors["y"] = calibration::test::summary_of({0, 7});
  const auto ranges = find_ranges(placement, statistics, {}, {});
  EXPECT_EQ(ranges.at("t").range.min, -3.0F);
  EXPECT_EQ(ranges.at("t").range.max, 2.0F);
  EXPECT_FALSE(ranges.contains("x"));
  RangeOptions given;
  given.overrides = {{"t", {}, {{-1.0F, 1.0F}}}};
  EXPECT_EQ(find_ranges(placement, statistics, {}, given).at("t").range.max, 1.0F) << "the user's word is about t";
}

}  // namespace
}  // namespace detent::quantization
