#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "exec/support.h"
#include "graph/execution.h"
#include "graph/support.h"
#include "planning/memory.h"
#include "planning/segments.h"

namespace detent::planning {
namespace {

// Plans against all others that there are, on graphs small enough to try them.

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

// The form that the runtime gives a model, and what of it is alive at a time, against what the runtime's allocator saw.

using namespace exec::test;

constexpr std::int64_t kBlock = 8;
constexpr std::uint64_t kPlane = 4 * 64 * 64;  // bytes of a channel in these tests

std::vector<std::int64_t> image(std::int64_t channels) { return {1, channels, 64, 64}; }

Model model_of(std::vector<Node> nodes, std::int64_t in, std::int64_t out, std::vector<onnx::Tensor> weights = {}) {
  return make_model(std::move(nodes), std::move(weights), 17, {value("x", image(in))}, {value("y", image(out))});
}

onnx::Tensor pointwise(const std::string& name, std::int64_t out, std::int64_t in) {
  return floats(name, {out, in, 1, 1}, Floats(static_cast<std::size_t>(out * in), 0.1F));
}

Executed executed(const Model& model, const ValueTypes& types, const Names& observed, std::int64_t block = kBlock) {
  return as_executed(model, graph::Index(model), types, observed, block);
}

std::uint64_t alive(const Executed& e) {
  const auto found = graph::liveness(e.model, graph::Index(e.model), e.types);
  EXPECT_TRUE(found);
  return found ? found->peak_bytes : 0;
}

TEST(AsExecuted, ConvolutionsGoThroughTheBlockedLayout) {
  const Model model = model_of({{"Conv", "c", {"x", "w"}, {"y"}}}, 12, 20, {pointwise("w", 20, 12)});
  const auto e = executed(model, types_of({{"x", image(12)}, {"y", image(20)}}), {"y"});
  EXPECT_EQ(op_types(e.model), (Names{"ReorderInput", "BlockedConv", "ReorderOutput"}));
  // Channels are padded to whole blocks: 16 and 24. The input itself is the caller's, so it goes after its last reader.
  EXPECT_EQ(alive(e), (24 + 20) * kPlane);
}

TEST(AsExecuted, AFewInputChannelsAreReadAsTheyAre) {
  const Model model = model_of({{"Conv", "c", {"x", "w"}, {"y"}}}, 3, 16, {pointwise("w", 16, 3)});
  const auto e = executed(model, types_of({{"x", image(3)}, {"y", image(16)}}), {"y"});
  EXPECT_EQ(op_types(e.model), (Names{"BlockedConv", "ReorderOutput"}));
}

TEST(AsExecuted, ConvolutionsThatDoNotFitStay) {
  const auto types = types_of({{"x", image(6)}, {"y", image(6)}});
  const Node grouped("Conv", "c", {"x", "w"}, {"y"}, {Attribute::of_int("group", 2)});
  EXPECT_EQ(op_types(executed(model_of({grouped}, 6, 6, {pointwise("w", 6, 3)}), types, {}).model),
            (Names{"computes Conv"}));
  const Model plain = model_of({{"Conv", "c", {"x", "w"}, {"y"}}}, 16, 16, {pointwise("w", 16, 16)});
  EXPECT_EQ(op_types(executed(plain, types_of({{"x", image(16)}, {"y", image(16)}}), {}, 0).model),
            (Names{"computes Conv"}));
}

TEST(AsExecuted, OneBlockedInputServesAllItsReaders) {
  const Model model =
      model_of({{"Conv", "1", {"x", "w"}, {"a"}}, {"Conv", "2", {"x", "w"}, {"b"}}, {"Add", "3", {"a", "b"}, {"y"}}},
               16, 16, {pointwise("w", 16, 16)});
  const auto types = types_of({{"x", image(16)}, {"a", image(16)}, {"b", image(16)}, {"y", image(16)}});
  const auto names = op_types(executed(model, types, {"a", "b"}).model);
  EXPECT_EQ(std::count(names.begin(), names.end(), "ReorderInput"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "BlockedConv"), 2);
}

TEST(AsExecuted, ArithmeticWritesAside) {
  const Model model =
      model_of({{"Softmax", "1", {"x"}, {"a"}}, {"Mul", "2", {"a", "s"}, {"y"}}}, 8, 8, {floats("s", {1}, {2.0F})});
  const auto types = types_of({{"x", image(8)}, {"a", image(8)}, {"y", image(8)}});
  EXPECT_EQ(alive(executed(model, types, {"a"})), 2 * 8 * kPlane);
}

TEST(AsExecuted, ActivationsWriteOverAnInputThatIsNotObserved) {
  const std::vector<Node> nodes{
      {"Softmax", "1", {"x"}, {"a"}}, {"Softmax", "2", {"a"}, {"b"}}, {"Relu", "3", {"b"}, {"y"}}};
  const Model model = model_of(nodes, 8, 8);
  const auto types = types_of({{"x", image(8)}, {"a", image(8)}, {"b", image(8)}, {"y", image(8)}});
  EXPECT_EQ(op_types(executed(model, types, {}).model).back(), "Relu");
  EXPECT_EQ(op_types(executed(model, types, {"b"}).model).back(), "computes Relu");
}

std::uint64_t predicted_bytes(const Model& model, const Names& observed, std::string_view what) {
  const auto cost = calibration_cost(model, exec::infer_value_types(runtime(), model), observed, {});
  for (const auto& part : cost.value().memory) {
    if (part.what == what) return part.bytes;
  }
  return 0;
}

// What the runtime's allocator had in use at one time, beside what is predicted, which counts the graph's input too.
void expect_as_measured(const Model& model, const Names& observed) {
  const auto predicted = static_cast<double>(predicted_bytes(model, observed, "activations alive at once"));
  const exec::Runtime fresh(runtime_library());
  exec::Session session(fresh, exec::emit(model, tap(observed)), "the model", {session_mode_for(model), 2, {}});
  Recorder recorder;
  const Array input = random_floats(image(16));
  session.run(std::span(&input, 1), "the sample", &recorder);
  const auto measured = static_cast<double>(fresh.peak_activation_bytes());
  EXPECT_GE(predicted, 0.97 * measured);
  EXPECT_LE(predicted, 1.03 * (measured + 16 * kPlane));
}

// ARM has no blocked layout, and x86 without AVX none either.
TEST(AsExecuted, WeightsAreCopiedIntoTheBlockedLayoutAlone) {
  const Model model = model_of({{"Conv", "c", {"x", "w"}, {"y"}}}, 16, 16, {pointwise("w", 16, 16)});
  const std::uint64_t copies = channel_block() > 0 ? 16 * 16 * sizeof(float) : 0;
  EXPECT_EQ(predicted_bytes(model, {"y"}, "convolution weights in blocked layout"), copies);
  EXPECT_EQ(copied_weights(model), copies);
}

// The peak is the whole process's: ctest runs each test in one of its own.
bool others_have_run() { return runtime().peak_activation_bytes() > 0; }

TEST(AsExecuted, HoldsWhatTheRuntimeHolds) {
  if (others_have_run()) GTEST_SKIP() << "what other tests ran in this process counts as well";
  // A wide part in the middle, a shortcut around it, and arithmetic with a value that stays.
  const Model model = model_of({{"Conv", "1", {"x", "in"}, {"a"}},
                                {"Softmax", "2", {"a"}, {"gate"}},
                                {"Mul", "3", {"a", "gate"}, {"b"}},
                                {"Conv", "4", {"b", "out"}, {"c"}},
                                {"Add", "5", {"c", "x"}, {"y"}}},
                               16, 16, {pointwise("in", 64, 16), pointwise("out", 16, 64)});
  expect_as_measured(model, {"a", "gate", "b", "c", "y"});
  expect_as_measured(model, {"a", "c", "y"});
}

TEST(AsExecuted, HoldsWhatBranchesHold) {
  if (others_have_run()) GTEST_SKIP() << "what other tests ran in this process counts as well";
  const Model model =
      model_of({{"Conv", "1", {"x", "w"}, {"a"}},
                {"Softmax", "2", {"a"}, {"short"}},
                {"MaxPool",
                 "3",
                 {"a"},
                 {"small"},
                 {Attribute::of_ints("kernel_shape", {2, 2}), Attribute::of_ints("strides", {2, 2})}},
                {"Conv", "4", {"small", "w"}, {"deep"}},
                {"ConvTranspose", "5", {"deep", "up"}, {"large"}, {Attribute::of_ints("strides", {2, 2})}},
                {"Add", "6", {"short", "large"}, {"y"}}},
               16, 16, {pointwise("w", 16, 16), floats("up", {16, 16, 2, 2}, Floats(1024, 0.1F))});
  expect_as_measured(model, {"a", "short", "deep", "large", "y"});
}

graph::ValueTypes types_of_sizes(const std::vector<std::pair<std::string, std::int64_t>>& mib) {
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
  const auto types = types_of_sizes({{"x", 1}, {"a", 8}, {"b", 2}, {"y", 1}});
  const auto memory =
      memory_side_by_side(chain(), types, std::vector<StagesOfForm>{{{0, 1}, {1, 3}}, {{0, 2}, {2, 3}}});
  ASSERT_TRUE(memory);
  // On their way in the first stages: x and a, x and b; in the second a, b.
  const std::uint64_t buffers = spool_buffers((1 + 8 + 1 + 2) * kMiB);
  EXPECT_EQ(memory->stages[0], kProcess + alone(types, 0, 1) + alone(types, 0, 2) + buffers);
  EXPECT_EQ(memory->stages[1], kProcess + alone(types, 1, 3) + alone(types, 2, 3) + buffers);
}

TEST(SideBySide, AStageOfNoNodesTakesNothing) {
  const auto types = types_of_sizes({{"x", 1}, {"a", 8}, {"b", 2}, {"y", 1}});
  const auto memory =
      memory_side_by_side(chain(), types, std::vector<StagesOfForm>{{{0, 1}, {1, 1}}, {{0, 0}, {0, 1}}});
  ASSERT_TRUE(memory);
  const std::uint64_t buffers = spool_buffers((1 + 8) * kMiB);
  EXPECT_EQ(memory->stages[0], kProcess + alone(types, 0, 1) + buffers);
  EXPECT_EQ(memory->stages[1], kProcess + alone(types, 0, 1) + buffers);
}

// As where one looks several times into what cannot be cut.
TEST(SideBySide, StagesMayRunTheSameNodes) {
  const auto types = types_of_sizes({{"x", 1}, {"a", 8}, {"b", 2}, {"y", 1}});
  const auto memory = memory_side_by_side(chain(), types, std::vector<StagesOfForm>{{{0, 1}, {1, 3}, {1, 3}}});
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->stages[1], memory->stages[2]);
  EXPECT_EQ(memory->stages[1] - memory->stages[0], alone(types, 1, 3) - alone(types, 0, 1));
}

TEST(SideBySide, IsNotKnownWhereAShapeIsNot) {
  const auto types = types_of_sizes({{"x", 1}, {"a", 8}, {"b", 2}});
  EXPECT_FALSE(memory_side_by_side(chain(), types, std::vector<StagesOfForm>{{{0, 3}}}));
}

}  // namespace
}  // namespace detent::planning
