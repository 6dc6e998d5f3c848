// What becomes of the times of runs.
#include "run/comparison/latency.h"

#include <gtest/gtest.h>

#include "exec/support.h"

namespace detent::run {
namespace {

std::vector<exec::RunTime> turn(double wall, std::size_t runs = 3, double own = -1) {
  return std::vector<exec::RunTime>(runs, {wall, 2 * wall, own < 0 ? wall : own});
}

TEST(Latencies, AreQuantilesOverAllRuns) {
  Turns turns;
  for (int i = 1; i <= 101; ++i) turns.push_back(turn(i, 1));
  const auto latency = latencies({turns}).front();
  EXPECT_EQ(latency.runs, 101U);
  EXPECT_EQ(latency.min, 1);
  EXPECT_EQ(latency.median, 51);
  EXPECT_EQ(latency.p90, 91);
  EXPECT_EQ(latency.cpu, 102);
  EXPECT_EQ(latency.ratio, 1);
}

TEST(Latencies, CompareTurnsOfTheSameTime) {
  // A busy while (the third turn) makes both models ten times slower.
  const Turns first{turn(1), turn(1), turn(10), turn(1)};
  const Turns second{turn(0.8), turn(0.8), turn(8), turn(0.9)};
  const auto all = latencies({first, second});
  EXPECT_DOUBLE_EQ(all[1].ratio, 0.8);
  EXPECT_DOUBLE_EQ(all[1].cpu_ratio, 0.8);
  EXPECT_LE(all[1].ratio_low, 0.8);
  EXPECT_LE(all[1].ratio_high, 0.9);
}

TEST(Latencies, HaveNoRatioThatTheirMediansContradict) {
  const Turns first{turn(10), turn(10), turn(1), turn(1), turn(10)};
  const Turns second{turn(9), turn(9.5), turn(1.2), turn(1.2), turn(10.5)};
  const auto all = latencies({first, second});
  EXPECT_EQ(all[1].median, 9);
  EXPECT_EQ(all[1].ratio, 1);  // 1.05 in turns
  EXPECT_LE(all[1].ratio_low, 1);
  EXPECT_GE(all[1].ratio_high, 1);
}

TEST(Latencies, TellOfABusyMachine) {
  EXPECT_EQ(busy_note(latencies({{turn(1)}, {turn(2)}})), "");
  const auto busy = latencies({{turn(1)}, {turn(2, 3, 1)}});
  EXPECT_DOUBLE_EQ(busy[1].waiting, 0.5);
  EXPECT_NE(busy_note(busy).find("50 %"), std::string::npos);
}

TEST(MeasuredLatency, IsLeftOutWhereItCostsTooMuch) {
  const auto note_of = [](const LatencyRequest& request) {
    const std::filesystem::path no_model;
    const auto measured = measure_latencies(exec::test::runtime(), request, {&no_model, 1});
    EXPECT_TRUE(measured.changes.empty());
    return measured.notes.at(0);
  };
  LatencyRequest large;
  large.memory = 3 << 20;
  large.memory_budget = 2 << 20;
  EXPECT_EQ(
      note_of(large),
      "latency was not measured: running the larger model would take about 3.0 MiB, and the memory budget is 2.0 MiB");
  LatencyRequest slow;
  slow.sample_seconds = 2;
  slow.run_seconds = 10;
  EXPECT_NE(note_of(slow).find("one run takes about 2.0 s; detent bench"), std::string::npos);
  slow.run_seconds = 1000;
  EXPECT_NE(note_of(slow).find("model ''"), std::string::npos) << "it is tried, and there is no model";
}

}  // namespace
}  // namespace detent::run
