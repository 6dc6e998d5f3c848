#include "profile/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace detent::profile {
namespace {

std::uint64_t highest(const std::vector<TimelinePoint>& points) {
  std::uint64_t result = 0;
  for (const TimelinePoint& point : points) result = std::max(result, point.resident);
  return result;
}

bool in_order(const std::vector<TimelinePoint>& points) {
  return std::adjacent_find(points.begin(), points.end(), [](const auto& a, const auto& b) {
           return b.time <= a.time || b.disk_read < a.disk_read || b.disk_written < a.disk_written;
         }) == points.end();
}

TEST(Timeline, KeepsFewReadingsAsTheyAre) {
  Timeline timeline;
  EXPECT_TRUE(timeline.points().empty());
  for (int i = 0; i < 100; ++i) {
    timeline.add({.time = 0.02 * i + 0.01, .resident = 1000u + i, .anonymous = 500u + i, .disk_read = 10u * i});
  }
  ASSERT_EQ(timeline.points().size(), 100u);
  EXPECT_EQ(timeline.points()[7].resident, 1007u);
  EXPECT_EQ(timeline.points()[7].anonymous, 507u);
  EXPECT_EQ(timeline.points()[7].disk_read, 70u);
  EXPECT_DOUBLE_EQ(timeline.points()[7].time, 0.15);
}

TEST(Timeline, StaysBoundedAndEven) {
  Timeline timeline;
  for (int i = 0; i < 1'000'000; ++i) {  // five and a half hours
    timeline.add({.time = 0.02 * i, .resident = 5, .disk_read = static_cast<std::uint64_t>(i)});
    ASSERT_LE(timeline.points().size(), Timeline::kCapacity);
  }
  const auto& points = timeline.points();
  EXPECT_GE(points.size(), Timeline::kCapacity / 2);
  EXPECT_TRUE(in_order(points));
  EXPECT_LT(points.front().time, timeline.step());
  EXPECT_DOUBLE_EQ(points.back().time, 0.02 * 999'999);
  EXPECT_EQ(points.back().disk_read, 999'999u);
  for (std::size_t i = 1; i + 1 < points.size(); ++i) {
    EXPECT_NEAR(points[i].time - points[i - 1].time, timeline.step(), 0.021);
  }
}

TEST(Timeline, EveryMaximumSurvives) {
  for (const int spike : {0, 1, 777, 4096, 39'998, 39'999}) {
    Timeline timeline(16);
    for (int i = 0; i < 40'000; ++i) {
      const bool high = i == spike;
      timeline.add({.time = 0.02 * i,
                    .resident = high ? 900u : 100u,
                    .anonymous = high ? 800u : 50u,
                    .gpu_memory = high ? 700u : 0u});
    }
    EXPECT_EQ(highest(timeline.points()), 900u);
    const auto at = std::find_if(timeline.points().begin(), timeline.points().end(),
                                 [](const TimelinePoint& point) { return point.resident == 900u; });
    EXPECT_EQ(at->anonymous, 800u);
    EXPECT_EQ(at->gpu_memory, 700u);
    EXPECT_GE(at->time + 1e-9, 0.02 * spike);
    EXPECT_LT(at->time, 0.02 * spike + timeline.step());
  }
}

TEST(Timeline, BurstsAndGapsAreNoTrouble) {
  Timeline timeline(8);
  double time = 0;
  for (int round = 0; round < 200; ++round) {
    for (int i = 0; i < 50; ++i) timeline.add({.time = time += 1e-6, .resident = 1u + i});
    time += round % 3 == 0 ? 100.0 : 0.001;
    ASSERT_LE(timeline.points().size(), 8u);
  }
  EXPECT_TRUE(in_order(timeline.points()));
  EXPECT_EQ(highest(timeline.points()), 50u);
}

TEST(Timeline, NeverRunsBackwards) {
  Timeline timeline;
  timeline.add({.time = 1, .resident = 1, .disk_read = 100, .disk_written = 50});
  timeline.add({.time = 0.5, .resident = 9, .disk_read = 80});  // a child ended and took its figures with it
  timeline.add({.time = 2, .resident = 2, .disk_read = 90});
  ASSERT_EQ(timeline.points().size(), 2u);
  EXPECT_DOUBLE_EQ(timeline.points()[0].time, 1);
  EXPECT_EQ(timeline.points()[0].resident, 9u);
  EXPECT_EQ(timeline.points()[1].disk_read, 100u);
  EXPECT_EQ(timeline.points()[1].disk_written, 50u);
}

TEST(Timeline, SmallestCapacity) {
  Timeline timeline(0);
  for (int i = 0; i < 1000; ++i) timeline.add({.time = 1.0 * i, .resident = static_cast<std::uint64_t>(i)});
  EXPECT_LE(timeline.points().size(), 2u);
  EXPECT_EQ(highest(timeline.points()), 999u);
}

}  // namespace
}  // namespace detent::profile
