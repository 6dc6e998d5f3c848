#include "planning/segments.h"

#include <gtest/gtest.h>

#include "graph/support.h"
#include "planning/memory.h"

namespace detent::planning {
namespace {

using namespace graph::test;

graph::ValueTypes types_of(const std::vector<std::pair<std::string, std::int64_t>>& mib) {
  graph::ValueTypes types;
  for (const auto& [name, size] : mib)
    types[name] = {DataType::float32, std::vector<onnx::Dim>{{size * (1 << 18), ""}}};
  return types;
}

// x -> a -> b -> y
const onnx::Model& chain() {
  static const onnx::Model model =
      make_model({{"Softmax", "", {"x"}, {"a"}}, {"Softmax", "", {"a"}, {"b"}}, {"Softmax", "", {"b"}, {"y"}}}, {}, 17,
                 {value("x", {1 << 18})}, {value("y")});
  return model;
}

std::uint64_t alone(const graph::ValueTypes& types, int begin, int end) {
  const graph::Index index(chain());
  auto walk = SegmentWalk::make(chain(), index, types, {}, {.histograms = false});
  walk->begin(begin);
  SegmentCost cost;
  for (int n = begin; n < end; ++n) cost = walk->step();
  return cost.memory() - kProcess;
}

TEST(SideBySide, StagesOfAllFormsAreInMemoryTogether) {
  const auto types = types_of({{"x", 1}, {"a", 8}, {"b", 2}, {"y", 1}});
  const auto memory =
      memory_side_by_side(chain(), types, std::vector<StagesOfForm>{{{0, 1}, {1, 3}}, {{0, 2}, {2, 3}}});
  ASSERT_TRUE(memory);
  // On their way in the first stages: x and a, x and b; in the second a, b.
  const std::uint64_t buffers = spool_buffers((1 + 8 + 1 + 2) * kMiB);
  EXPECT_EQ(memory->stages[0], kProcess + alone(types, 0, 1) + alone(types, 0, 2) + buffers);
  EXPECT_EQ(memory->stages[1], kProcess + alone(types, 1, 3) + alone(types, 2, 3) + buffers);
}

TEST(SideBySide, AStageOfNoNodesTakesNothing) {
  const auto types = types_of({{"x", 1}, {"a", 8}, {"b", 2}, {"y", 1}});
  const auto memory =
      memory_side_by_side(chain(), types, std::vector<StagesOfForm>{{{0, 1}, {1, 1}}, {{0, 0}, {0, 1}}});
  ASSERT_TRUE(memory);
  const std::uint64_t buffers = spool_buffers((1 + 8) * kMiB);
  EXPECT_EQ(memory->stages[0], kProcess + alone(types, 0, 1) + buffers);
  EXPECT_EQ(memory->stages[1], kProcess + alone(types, 0, 1) + buffers);
}

// As where one looks several times into what cannot be cut.
TEST(SideBySide, StagesMayRunTheSameNodes) {
  const auto types = types_of({{"x", 1}, {"a", 8}, {"b", 2}, {"y", 1}});
  const auto memory = memory_side_by_side(chain(), types, std::vector<StagesOfForm>{{{0, 1}, {1, 3}, {1, 3}}});
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->stages[1], memory->stages[2]);
  EXPECT_EQ(memory->stages[1] - memory->stages[0], alone(types, 1, 3) - alone(types, 0, 1));
}

TEST(SideBySide, IsNotKnownWhereAShapeIsNot) {
  const auto types = types_of({{"x", 1}, {"a", 8}, {"b", 2}});
  EXPECT_FALSE(memory_side_by_side(chain(), types, std::vector<StagesOfForm>{{{0, 3}}}));
}

}  // namespace
}  // namespace detent::planning
