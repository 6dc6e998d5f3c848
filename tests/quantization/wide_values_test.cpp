#include "quantization/placement/value_kinds.h"

#include <gtest/gtest.h>

#include "support.h"

namespace detent::quantization {
namespace {

using testing::Builder;

enum : std::size_t { kFirst, kSecond, kSum, kPool, kThird };

// x -> first -> a; x -> second -> b; a + b -> s -> pool -> p -> third -> y.
Builder two_branches() {
  Builder b;
  b.input("x").constant("w", {3, 3, 1, 1});
  b.node("Conv", {"x", "w"}, {"a"}).node("Conv", {"x", "w"}, {"b"}).node("Add", {"a", "b"}, {"s"});
  b.node("MaxPool", {"s"}, {"p"}).node("Conv", {"p", "w"}, {"y"}).output("y");
  return b;
}

// Of the graph's values that change with the input.
std::set<std::string> wide(std::initializer_list<std::size_t> nodes, bool formats_given = true) {
  const auto b = two_branches();
  std::vector<bool> flags(b.model.graph.nodes.size());
  for (const auto n : nodes) flags[n] = true;
  auto values = wide_values(b.model, graph::Index(b.model), flags, formats_given, b.place());
  values.erase("w");
  return values;
}

using Values = std::set<std::string>;

TEST(WideValues, OperatorsCarrySixteenBitsBetweenWideProducts) {
  EXPECT_EQ(wide({kFirst, kSecond, kThird}), (Values{"x", "a", "b", "s", "p", "y"}));
  EXPECT_EQ(wide({kThird}), (Values{"p", "s", "y"})) << "the branches keep the bits that their products make";
}

TEST(WideValues, ProductsOfEightBitsKeepWhatTheyReadAndMake) {
  EXPECT_EQ(wide({kFirst, kSecond}), (Values{"x", "a", "b"})) << "the pool has one scale for what it reads and makes";
  EXPECT_EQ(wide({kFirst, kThird}), (Values{"x", "a", "s", "p", "y"}));
}

TEST(WideValues, FallbacksConcernWhatIsBesideThem) {
  EXPECT_EQ(wide({kThird}, false), (Values{"p", "y"}));
  EXPECT_EQ(wide({kFirst}, false), (Values{"x", "a"}));
  EXPECT_TRUE(wide({}).empty());
  const auto b = two_branches();
  EXPECT_TRUE(wide_values(b.model, graph::Index(b.model), {}, true, b.place()).empty());
}

}  // namespace
}  // namespace detent::quantization
