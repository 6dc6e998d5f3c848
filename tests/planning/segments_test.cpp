// Plans against all others that there are, on graphs small enough to try them.
#include "planning/segments.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "graph/support.h"
#include "planning/memory.h"

namespace detent::planning {
namespace {

using namespace graph::test;

constexpr std::uint64_t kInfinite = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kPlenty = std::uint64_t{1} << 40;
constexpr std::uint64_t kSamples = 3;
constexpr int kNodes = 9;

struct Case {
  onnx::Model model;
  graph::ValueTypes types;
  Names observed;
  Circumstances circumstances{kNodes, true, 1, 1, 0};
};

void set_type(graph::ValueTypes& types, const std::string& name, std::uint64_t mib) {
  const auto elements = static_cast<std::int64_t>(mib * kMiB / sizeof(float));
  types[name] = {DataType::float32, std::vector<onnx::Dim>{{1, ""}, {elements, ""}}};
}

// Nodes that read the value before them, some also an earlier one, some also a weight.
Case random_case(unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  std::vector<Node> nodes;
  std::vector<onnx::Tensor> weights;
  Case made;
  set_type(made.types, "x", 2);
  std::string last = "x";
  for (int n = 0; n < kNodes; ++n) {
    const std::string name = n + 1 == kNodes ? "y" : fmt::format("v{}", n);
    Names inputs{last};
    if (n > 1 && below(3) == 0) inputs.push_back(fmt::format("v{}", below(n - 1)));
    if (inputs.size() == 1 && below(2) == 0) {
      const std::int64_t count = (1 + below(8)) << 16;
      weights.push_back(floats(fmt::format("w{}", n), {count}, Floats(static_cast<std::size_t>(count), 1)));
      inputs.push_back(weights.back().name);
    }
    nodes.push_back({inputs.size() > 1 ? "Mul" : "Softmax", "", inputs, {name}});
    set_type(made.types, name, static_cast<std::uint64_t>(1 + below(12)));
    made.observed.push_back(name);
    last = name;
  }
  made.model = make_model(std::move(nodes), std::move(weights), 17, {value("x", {1, 1 << 19})}, {value("y")});
  return made;
}

SweepPlan plan(const Case& made, const Budget& budget) {
  return plan_sweep(made.model, made.types, made.observed, made.circumstances, kSamples, budget);
}

Budget on_disk(std::uint64_t memory) {
  return {.memory = memory, .disk = kPlenty, .all_on_disk = true, .all_in_memory = false, .segments = 0};
}

// The bytes that a chain moves when all that waits is on disk; kInfinite: it takes too much memory.
std::uint64_t price(SegmentWalk& walk, const std::vector<int>& cuts, std::uint64_t memory) {
  std::uint64_t sum = 0;
  int begin = 0;
  auto ends = cuts;
  ends.push_back(walk.nodes());
  for (const int end : ends) {
    walk.begin(begin);
    SegmentCost cost;
    for (int n = begin; n < end; ++n) cost = walk.step();
    const std::uint64_t moved = cost.read_bytes + cost.write_bytes;
    const std::uint64_t needed = cost.anonymous + (cuts.empty() ? 0 : std::min(64 * kMiB, 3 * moved));
    if (needed > memory) return kInfinite;
    sum += 16 * kMiB + cost.weights * (needed + cost.weights <= memory ? 1 : kSamples);
    if (!cuts.empty()) sum += kSamples * (cost.write_bytes + (begin == 0 ? 0 : cost.read_bytes));
    begin = end;
  }
  return sum;
}

std::uint64_t smallest_named(const Case& made) {
  try {
    plan(made, on_disk(kMiB));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
    const std::string text = error.what() + error.hint();
    const auto at = text.find("that works is ");
    EXPECT_NE(at, std::string::npos) << text;
    return std::stoull(text.substr(at + 14));
  }
  ADD_FAILURE() << "a budget of 1 MiB was kept";
  return 0;
}

class Plans : public testing::TestWithParam<unsigned> {};

TEST_P(Plans, MoveTheFewestBytesOfAll) {
  const Case made = random_case(GetParam());
  const graph::Index index(made.model);
  auto walk = SegmentWalk::make(made.model, index, made.types, made.observed, made.circumstances);
  ASSERT_TRUE(walk);
  for (std::uint64_t memory = 40 * kMiB; memory <= 160 * kMiB; memory += 10 * kMiB) {
    std::uint64_t best = kInfinite;
    for (unsigned set = 0; set < 1U << (kNodes - 1); ++set) {
      std::vector<int> cuts;
      for (int cut = 1; cut < kNodes; ++cut) {
        if ((set >> (cut - 1) & 1U) != 0) cuts.push_back(cut);
      }
      best = std::min(best, price(*walk, cuts, memory));
    }
    if (best == kInfinite) {
      EXPECT_THROW(plan(made, on_disk(memory)), Error) << memory / kMiB;
      continue;
    }
    const auto found = plan(made, on_disk(memory));
    EXPECT_EQ(price(*walk, found.cuts, memory), best) << memory / kMiB;
    EXPECT_LE(found.memory, memory);
  }
}

TEST_P(Plans, TheSmallestBudgetIsNamedAndTight) {
  const Case made = random_case(GetParam());
  const std::uint64_t smallest = smallest_named(made);
  EXPECT_LE(plan(made, on_disk(smallest * kMiB)).memory, smallest * kMiB);
  EXPECT_THROW(plan(made, on_disk((smallest - 1) * kMiB)), Error);
}

TEST_P(Plans, KeepToBothBudgets) {
  const Case made = random_case(GetParam());
  for (std::uint64_t memory = 50 * kMiB; memory <= 200 * kMiB; memory += 25 * kMiB) {
    for (const std::uint64_t disk : {4 * kMiB, 40 * kMiB, 400 * kMiB}) {
      const Budget budget{.memory = memory, .disk = disk, .all_on_disk = false, .all_in_memory = false, .segments = 0};
      try {
        const auto found = plan(made, budget);
        EXPECT_LE(found.memory, memory);
        EXPECT_LE(found.disk, disk);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::resource);
      }
    }
  }
}

// Records wait in the spool's buffers as long as the disk is slow, whatever segment runs.
TEST_P(Plans, BuffersOfTheSpoolFitBesideEachSegment) {
  const Case made = random_case(GetParam());
  const graph::Index index(made.model);
  auto walk = SegmentWalk::make(made.model, index, made.types, made.observed, made.circumstances);
  const std::uint64_t smallest = smallest_named(made) * kMiB;
  for (std::uint64_t memory = smallest; memory <= smallest + 60 * kMiB; memory += 4 * kMiB) {
    for (const bool all_on_disk : {false, true}) {
      Budget budget = on_disk(memory);
      budget.all_on_disk = all_on_disk;
      const auto found = plan(made, budget);
      EXPECT_GT(found.spool.buffers, 0U);
      EXPECT_LE(found.spool.buffers, 64 * kMiB);
      auto ends = found.cuts;
      ends.push_back(walk->nodes());
      int begin = 0;
      for (const int end : ends) {
        walk->begin(begin);
        SegmentCost cost;
        for (; begin < end; ++begin) cost = walk->step();
        EXPECT_LE(cost.anonymous + found.spool.buffers + found.spool.records, memory) << memory / kMiB;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(RandomGraphs, Plans, testing::Range(0U, 12U));

TEST(PlanSweep, DoesNotCutWhatFits) { EXPECT_TRUE(plan(random_case(1), on_disk(kPlenty)).cuts.empty()); }

TEST(PlanSweep, CutsAsOftenAsAsked) {
  auto budget = on_disk(kPlenty);
  budget.segments = 4;
  EXPECT_EQ(plan(random_case(1), budget).cuts.size(), 3U);
}

TEST(PlanSweep, AllInMemoryNeedsRoomForWhatWaits) {
  const Case made = random_case(2);
  std::size_t plans = 0;
  for (std::uint64_t memory = 60 * kMiB; memory <= 200 * kMiB; memory += 10 * kMiB) {
    const Budget budget{.memory = memory, .disk = 0, .all_on_disk = false, .all_in_memory = true, .segments = 4};
    try {
      const auto found = plan(made, budget);
      EXPECT_EQ(found.disk, 0U);
      EXPECT_LE(found.spool_bytes, found.spool.records);
      EXPECT_LE(found.memory, memory);
      ++plans;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::resource);
    }
  }
  EXPECT_GT(plans, 0U);
}

}  // namespace
}  // namespace detent::planning
