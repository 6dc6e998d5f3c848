#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "quantization/support.h"
#include "speed/choice.h"
#include "speed/kernels.h"

namespace detent::speed {
namespace {

using quantization::testing::Builder;

constexpr double kMicrosecond = 1e-6;

KernelTimes times(double in_float, double in_integers, double quantize = 0, double dequantize = 0,
                  double into_blocks = 0, double out_of_blocks = 0) {
  return {kMicrosecond * in_float,   kMicrosecond * in_integers, kMicrosecond * quantize,
          kMicrosecond * dequantize, kMicrosecond * into_blocks, kMicrosecond * out_of_blocks};
}

// A graph of values of equal shapes, with the times of its nodes.
struct Case {
  Builder builder;
  std::map<std::string, KernelTimes> times_of;  // by output; others are not known
  std::vector<std::string> in_float = {};       // outputs of nodes that cannot compute on integers

  Case() { builder.input("x"); }

  Case& conv(const std::string& from, const std::string& to, const KernelTimes& t) {
    builder.constant(to + "_w", {1, 1, 1, 1}, {1.0F}).node("Conv", {from, to + "_w"}, {to});
    times_of[to] = t;
    return *this;
  }

  FasterInFloat found = {};

  std::vector<std::string> choose(const SpeedGoal& goal = {}) {
    auto& graph = builder.model.graph;
    for (auto& [name, type] : builder.types) type.shape = std::vector<onnx::Dim>{{1, ""}, {1, ""}, {4, ""}, {4, ""}};
    const graph::Index index(builder.model);
    std::vector<bool> candidates;
    for (const auto& node : graph.nodes)
      candidates.push_back(std::find(in_float.begin(), in_float.end(), node.outputs()[0]) == in_float.end());
    const QuantConfig config = preset_config("balanced");
    found = faster_in_float(
        {builder.model, index, builder.types, config}, candidates,
        [&](std::size_t n) {
          const auto entry = times_of.find(graph.nodes[n].outputs()[0]);
          return entry == times_of.end() ? nullptr : &entry->second;
        },
        goal);
    std::vector<std::string> outputs;
    for (const auto n : found.nodes) outputs.push_back(graph.nodes[n].outputs()[0]);
    return outputs;
  }
};

using Names = std::vector<std::string>;

TEST(Choice, counts_the_conversions_around_a_faster_kernel) {
  Case dear;
  dear.conv("x", "y", times(100, 80, 15, 15)).builder.output("y");
  EXPECT_EQ(dear.choose(), Names{"y"});
  Case cheap;
  cheap.conv("x", "y", times(100, 80, 5, 5)).builder.output("y");
  EXPECT_EQ(cheap.choose(), Names{});
}

TEST(Choice, keeps_a_slower_kernel_in_integers_where_its_neighbours_are) {
  const auto chain = [](double middle) {
    Case c;
    c.conv("x", "a", times(100, 20, 10, 10)).conv("a", "b", times(50, middle, 10, 10));
    c.conv("b", "y", times(100, 20, 10, 10)).builder.output("y");
    return c;
  };
  EXPECT_EQ(chain(60).choose(), Names{});     // 10 slower, but a DequantizeLinear and a QuantizeLinear less
  EXPECT_EQ(chain(80).choose(), Names{"b"});  // 30 slower
}

TEST(Choice, counts_a_conversion_for_each_reader_in_float) {
  Case gate;
  gate.conv("x", "a", times(100, 65, 10, 20));
  gate.builder.node("Sigmoid", {"a"}, {"s"}).node("Mul", {"a", "s"}, {"y"}).output("y");
  gate.in_float = {"s", "y"};
  EXPECT_EQ(gate.choose(), Names{"a"});  // 65 + 10 + 2 · 20
}

TEST(Choice, counts_one_conversion_for_all_readers_in_integers) {
  Case fork;
  fork.builder.node("Exp", {"x"}, {"e"});
  fork.in_float = {"e"};
  fork.conv("e", "a", times(100, 75, 30, 0)).conv("e", "b", times(100, 75, 30, 0));
  fork.builder.output("a").output("b");
  EXPECT_EQ(fork.choose(), Names{});  // 2 · 75 + 30
}

TEST(Choice, counts_the_way_into_the_blocked_layout_and_back) {
  Case island;
  island.conv("x", "a", times(100, 20)).conv("a", "b", times(50, 60, 0, 0, 20, 0));
  island.conv("b", "y", times(100, 20)).builder.output("y");
  EXPECT_EQ(island.choose(), Names{});
  Case all_in_float;
  all_in_float.conv("x", "a", times(50, 60, 0, 0, 0, 0)).conv("a", "y", times(50, 60, 0, 0, 20, 0)).builder.output("y");
  EXPECT_EQ(all_in_float.choose(), (Names{"a", "y"}));  // the layout goes on from one to the next
}

TEST(Choice, keeps_a_pooling_on_the_side_of_the_convolution_before_it) {
  Case pool;
  pool.conv("x", "a", times(50, 60, 9, 1));
  pool.builder.node("MaxPool", {"a"}, {"p"}, {onnx::Attribute::of_ints("kernel_shape", {1, 1})});
  pool.conv("p", "y", times(100, 10, 1, 1)).builder.output("y");
  EXPECT_EQ(pool.choose(), (Names{"a", "p"}));
}

TEST(Choice, for_accuracy_wants_integers_to_be_a_tenth_faster) {
  Case close;
  close.conv("x", "y", times(100, 93)).builder.output("y");
  EXPECT_EQ(close.choose({OptimizeFor::latency}), Names{});
  EXPECT_EQ(close.choose({OptimizeFor::accuracy}), Names{"y"});
}

TEST(Choice, gives_near_ties_to_the_smaller_file) {
  const auto beside_a_fast_one = [](double in_integers) {
    Case c;
    c.conv("x", "y", times(100, in_integers)).conv("x", "z", times(100, 10)).builder.output("y").output("z");
    return c.choose();
  };
  EXPECT_EQ(beside_a_fast_one(101), Names{});
  EXPECT_EQ(beside_a_fast_one(104), Names{"y"});
}

TEST(Choice, takes_what_size_is_worth_as_one_number) {
  const auto slower_by_a_fifth = [](double size_worth) {
    Case c;
    c.conv("x", "y", times(100, 120)).conv("x", "z", times(100, 10)).builder.output("y").output("z");
    return c.choose({OptimizeFor::latency, size_worth});  // y and z have half of the bytes each
  };
  EXPECT_EQ(slower_by_a_fifth(0), Names{"y"});
  EXPECT_EQ(slower_by_a_fifth(19), Names{"y"});
  EXPECT_EQ(slower_by_a_fifth(21), Names{});
}

TEST(Choice, predicts_the_times_of_its_choice_and_of_integers_alone) {
  Case c;
  c.conv("x", "a", times(100, 20, 10, 10)).conv("a", "b", times(50, 80, 10, 10));
  c.conv("b", "y", times(100, 20, 10, 10)).builder.output("y");
  EXPECT_EQ(c.choose(), Names{"b"});
  EXPECT_NEAR(c.found.seconds, (10 + 20 + 10) * 2e-6 + 50e-6, 1e-9);  // two islands, each with conversions around it
  EXPECT_NEAR(c.found.seconds_on_integers, (10 + 20 + 80 + 20 + 10) * 1e-6, 1e-9);
}

TEST(Choice, keeps_a_table_that_is_most_of_the_file_in_integers) {
  const auto table_of = [](std::int64_t rows) {
    Case c;
    c.builder.constant("t", {rows, 4}, std::vector<float>(static_cast<std::size_t>(4 * rows), 1.0F));
    c.builder.node("Gather", {"t", "x"}, {"e"});
    c.conv("e", "y", times(100, 120, 1, 1)).builder.output("y");
    return c.choose();
  };
  EXPECT_EQ(table_of(1000), Names{"y"});
  EXPECT_EQ(table_of(0), (Names{"e", "y"}));
}

TEST(Choice, takes_the_time_of_rows_from_their_own_kernels) {
  // Another product's conversion of few elements overstates what rows take; their own times do not.
  const auto table_with = [](std::optional<KernelTimes> lookup) {
    Case c;
    c.builder.constant("t", {1000, 4}, std::vector<float>(4000, 1.0F));
    c.builder.node("Gather", {"t", "x"}, {"e"});
    if (lookup) c.times_of["e"] = *lookup;
    c.conv("e", "y", times(100, 120, 1, 50)).builder.output("y");
    return c.choose();
  };
  EXPECT_EQ(table_with(std::nullopt), (Names{"e", "y"}));
  EXPECT_EQ(table_with(times(2, 2, 0, 2)), Names{"y"});
  EXPECT_EQ(table_with(times(2, 13, 0, 2)), (Names{"e", "y"}));
}

TEST(Choice, lets_size_decide_what_is_too_short_to_time) {
  const auto product_of = [](std::int64_t weights, double in_float, OptimizeFor optimize_for = OptimizeFor::latency) {
    Case c;
    c.builder.constant("w", {weights, 1, 1, 1}, std::vector<float>(static_cast<std::size_t>(weights), 1.0F));
    c.builder.node("Conv", {"x", "w"}, {"y"});
    c.times_of["y"] = times(in_float, 2 * in_float, 1, 1);
    c.builder.output("y");
    return c.choose({optimize_for});
  };
  EXPECT_EQ(product_of(4096, 20), Names{});
  EXPECT_EQ(product_of(4096, 21), Names{"y"});
  EXPECT_EQ(product_of(4095, 20), Names{"y"}) << "nothing is to be gained";
  EXPECT_EQ(product_of(4096, 20, OptimizeFor::accuracy), Names{"y"});
}

TEST(Choice, leaves_in_integers_what_was_not_timed) {
  Case unknown;
  unknown.conv("x", "y", {}).builder.output("y");
  unknown.times_of.clear();
  EXPECT_EQ(unknown.choose(), Names{});
}

TEST(Choice, leaves_all_in_float_where_little_is_to_be_gained) {
  Case little;
  little.conv("x", "y", times(100, 97)).builder.output("y");
  EXPECT_EQ(little.choose(), Names{"y"});
}

struct Network {
  std::size_t vertices = 0;
  std::map<std::pair<std::size_t, std::size_t>, std::int64_t> costs;

  std::int64_t cost_of(const std::vector<bool>& side) const {
    std::int64_t sum = 0;
    for (const auto& [arc, cost] : costs) sum += side[arc.first] && !side[arc.second] ? cost : 0;
    return sum;
  }
  std::vector<bool> cut() const {
    MinCut network(vertices);
    for (const auto& [arc, cost] : costs) network.add(arc.first, arc.second, cost);
    return network.source_side(0, 1);
  }
};

std::int64_t least_of_all(const Network& network) {
  std::int64_t least = MinCut::kNever;
  for (unsigned bits = 0; bits < 1U << (network.vertices - 2); ++bits) {
    std::vector<bool> side{true, false};
    for (std::size_t v = 2; v < network.vertices; ++v) side.push_back((bits >> (v - 2) & 1U) != 0);
    least = std::min(least, network.cost_of(side));
  }
  return least;
}

TEST(MinCut, costs_no_more_than_any_other_cut_of_random_networks) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    Network network{9, {}};
    for (int arc = 0; arc < 24; ++arc) {
      const std::size_t from = random() % network.vertices, to = random() % network.vertices;
      if (from != to) network.costs[{from, to}] = static_cast<std::int64_t>(random() % 20);
    }
    const auto side = network.cut();
    ASSERT_TRUE(side[0]);
    ASSERT_FALSE(side[1]);
    EXPECT_EQ(network.cost_of(side), least_of_all(network)) << "round " << round;
  }
}

TEST(MinCut, keeps_together_what_may_never_part) {
  const Network network{4, {{{0, 2}, 5}, {{3, 1}, 4}, {{2, 3}, MinCut::kNever}, {{3, 2}, MinCut::kNever}}};
  EXPECT_EQ(network.cut(), (std::vector<bool>{true, false, true, true}));
}

TEST(MinCut, gives_ties_to_the_source) {
  EXPECT_EQ((Network{3, {{{0, 2}, 3}, {{2, 1}, 3}}}.cut()), (std::vector<bool>{true, false, true}));
  EXPECT_EQ((Network{3, {}}.cut()), (std::vector<bool>{true, false, true}));
}

TEST(MinCut, takes_chains_of_a_hundred_thousand_vertices) {
  constexpr std::size_t kLength = 100'000;
  Network network{kLength + 2, {}};
  for (std::size_t v = 2; v < network.vertices; ++v) {
    network.costs[{0, v}] = 4;
    network.costs[{v, 1}] = v % 2 == 0 ? 2 : 6;
    if (v + 1 < network.vertices) network.costs[{v, v + 1}] = 1;
  }
  const auto side = network.cut();
  EXPECT_TRUE(side[2]);   // in integers: 2, and 1 for the conversion, instead of 4
  EXPECT_FALSE(side[3]);  // 4, and 1 for the conversion, instead of 6
}

std::string row(const std::string& time, const std::string& others = "1") {
  std::string text = "{";
  for (const char* name : {"float", "integers", "quantize", "dequantize", "into_blocks"})
    text += '"' + std::string(name) + "\":" + others + ",";
  return text + "\"out_of_blocks\":" + time + "}";
}

std::string table(const std::string& kernels) {
  return R"({"format":"detent kernel times 1","kernels":)" + kernels + "}";
}

class KernelTableFile : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) const {
    std::ofstream(folder_.path() / "table.json", std::ios::trunc) << text;
    return folder_.path() / "table.json";
  }
  TempDir folder_{std::filesystem::temp_directory_path()};
};

TEST_F(KernelTableFile, HoldsWhatWasSaved) {
  const auto path = folder_.path() / "new" / "table.json";
  KernelTable made(path);
  made.add("Conv", {1e-3, 2e-3, 0, 1e-6, 0, 3e-6});
  made.save({});
  const KernelTable read(path);
  ASSERT_NE(read.find("Conv"), nullptr);
  EXPECT_DOUBLE_EQ(read.find("Conv")->in_integers, 2e-3);
  EXPECT_EQ(read.find("MatMul"), nullptr);
}

TEST_F(KernelTableFile, OfTimesThatNoKernelTakesIsRefused) {
  EXPECT_NO_THROW(KernelTable(write(table("{\"Conv\":" + row("0", "0") + ",\"Gemm\":" + row("0") + "}"))));
  EXPECT_THROW(KernelTable(write(table("{\"Conv\":" + row("0", "0") + "}"))), Error);
  for (const char* time : {"-1", "-0.001", "1e300", "1e13", "\"1\"", "null", "[]"})
    EXPECT_THROW(KernelTable(write(table("{\"Conv\":" + row(time) + "}"))), Error) << time;
  for (const char* kernels : {"null", "[]", "7", "[{}]", "\"Conv\"", "{\"Conv\":null}"})
    EXPECT_THROW(KernelTable(write(table(kernels))), Error) << kernels;
}

// Choices for whole models, as they are kept in the kernel table.

TEST(ModelChoice, IsReadBackAsItWasWritten) {
  const ModelChoice choice{{"a", "\xff"}, 1.5e-3, 2e-3, 1e-3, 4e-3, {{"b \"", 2e-6}}};
  const auto read = choice_of(text_of(choice));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->in_float, choice.in_float);
  EXPECT_DOUBLE_EQ(read->seconds, 1.5e-3);
  EXPECT_DOUBLE_EQ(read->seconds_on_integers, 2e-3);
  EXPECT_DOUBLE_EQ(read->seconds_in_float, 1e-3);
  EXPECT_DOUBLE_EQ(read->seconds_dynamic, 4e-3);
  EXPECT_DOUBLE_EQ(read->added.at("b \""), 2e-6);
  for (const char* text : {"", "7", "{}", R"({"time":1,"integers":1,"float":1,"dynamic":1,"in_float":[7],"added":[]})"})
    EXPECT_FALSE(choice_of(text)) << text;
}

TEST(ModelChoice, IsKeptInTheTable) {
  const TempDir folder(std::filesystem::temp_directory_path());
  const auto path = folder.path() / "table.json";
  {
    KernelTable table(path);
    table.add_choice("model", {{"a"}, 1e-3, 2e-3, 3e-3});
    table.add_choice("model", {{"b"}, 1e-3, 2e-3, 3e-3});  // the first stays
    table.save({});
  }
  const KernelTable read(path);
  ASSERT_NE(read.find_choice("model"), nullptr);
  EXPECT_EQ(read.find_choice("model")->in_float, std::vector<std::string>{"a"});
  EXPECT_EQ(read.find_choice("other"), nullptr);
  for (const char* models : {"7", "[7]", R"({"m":{}})",
                             R"({"m":{"time":-1,"integers":1,"float":1,"dynamic":1,"in_float":[],"added":[]}})"}) {
    std::ofstream(path, std::ios::trunc) << R"({"format":"detent kernel times 1","kernels":{},"models":)" << models
                                         << "}";
    EXPECT_THROW(KernelTable{path}, Error) << models;
  }
}

// Three convolutions in a row: the one in the middle would take two conversions with it into float.
TEST(ModelChoice, TellsWhatFloatWouldAdd) {
  quantization::testing::Builder builder;
  builder.input("x");
  for (const auto& [from, to] : {std::pair{"x", "a"}, {"a", "b"}, {"b", "c"}})
    builder.constant(std::string(to) + "_w", {1, 1, 1, 1}, {1.0F}).node("Conv", {from, std::string(to) + "_w"}, {to});
  for (auto& [name, type] : builder.types) type.shape = std::vector<onnx::Dim>{{1, ""}, {1, ""}, {4, ""}, {4, ""}};
  const graph::Index index(builder.model);
  const QuantConfig config = preset_config("balanced");
  const KernelTimes times{30e-6, 10e-6, 3e-6, 4e-6};
  const TimedModel subject{builder.model, index, builder.types, config};
  const std::vector<bool> all(3, true);
  const TimesOf times_of = [&](std::size_t) { return &times; };
  const auto added = added_in_float(subject, all, {}, times_of);
  ASSERT_EQ(added.size(), 3U);
  EXPECT_NEAR(added[1], 20e-6 + 3e-6 + 4e-6, 1e-9);
  EXPECT_LT(added[0], added[1]);                                 // the input is float anyway
  EXPECT_EQ(added_in_float(subject, all, {1}, times_of)[1], 0);  // it is there already
}

}  // namespace
}  // namespace detent::speed
