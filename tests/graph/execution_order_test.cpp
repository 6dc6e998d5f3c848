// The runtime's order of nodes, against orders that ONNX Runtime 1.31 took (its profile tells).
#include "graph/execution.h"

#include <gtest/gtest.h>

#include "graph/support.h"

namespace detent::graph {
namespace {

using namespace test;

std::vector<int> order_of(const std::vector<Node>& nodes, const std::vector<onnx::ValueInfo>& outputs = {value("y")}) {
  const Model model = make_model(nodes, {}, 17, {value("x")}, outputs);
  return execution_order(model, Index(model));
}

TEST(ExecutionOrder, OfAChainIsThatOfTheFile) {
  EXPECT_EQ(order_of({{"Relu", "", {"x"}, {"a"}}, {"Abs", "", {"a"}, {"b"}}, {"Neg", "", {"b"}, {"y"}}}),
            (std::vector{0, 1, 2}));
}

TEST(ExecutionOrder, TheBranchThatEndsLaterGoesFirst) {
  // As in a feature pyramid: the shortcut (1) waits until the long branch (2, 3) is done.
  EXPECT_EQ(order_of({{"Relu", "", {"x"}, {"a"}},
                      {"Abs", "", {"a"}, {"short"}},
                      {"Neg", "", {"a"}, {"b"}},
                      {"Exp", "", {"b"}, {"long"}},
                      {"Add", "", {"short", "long"}, {"y"}}}),
            (std::vector{0, 2, 3, 1, 4}));
}

TEST(ExecutionOrder, StartsFromTheLastLeaf) {
  EXPECT_EQ(order_of({{"Relu", "", {"x"}, {"a"}}, {"Abs", "", {"a"}, {"y"}}, {"Neg", "", {"a"}, {"z"}}},
                     {value("y"), value("z")}),
            (std::vector{0, 2, 1}));
}

TEST(ExecutionOrder, BodiesReadFromAroundThem) {
  const std::vector<int> order = order_of({{"Relu", "", {"x"}, {"a"}},
                                           {"Abs", "", {"x"}, {"b"}},
                                           {"ReduceMax", "", {"x"}, {"c"}},
                                           if_node("c", "a", "b", "y")});
  EXPECT_EQ(order, (std::vector{2, 1, 0, 3}));
}

TEST(ExecutionOrder, HasEveryNodeOnceAfterItsProducers) {
  const std::vector<Node> nodes{{"Relu", "", {"x"}, {"a"}},     {"Abs", "", {"a"}, {"b"}},
                                {"Add", "", {"a", "b"}, {"c"}}, {"Mul", "", {"b", "b"}, {"d"}},
                                {"Neg", "", {"d"}, {"unread"}}, {"Sub", "", {"c", "d"}, {"e"}},
                                {"Sum", "", {"e", "a"}, {"y"}}};
  const Model model = make_model(nodes);
  const Index index(model);
  const auto order = execution_order(model, index);
  ASSERT_EQ(order.size(), nodes.size());
  std::set<int> done;
  for (const int n : order) {
    for (const auto& input : nodes[static_cast<std::size_t>(n)].inputs()) {
      EXPECT_TRUE(index.producer(input) == kNone || done.contains(index.producer(input)));
    }
    EXPECT_TRUE(done.insert(n).second);
  }
}

}  // namespace
}  // namespace detent::graph
