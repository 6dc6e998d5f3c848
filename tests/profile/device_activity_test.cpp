#include "profile/trace.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "profile/profiler.h"

namespace detent::profile {
namespace {

using Clock = DeviceActivity::Clock;

TEST(DeviceActivity, AddsUpByDeviceLaneAndKind) {
  DeviceActivity activity(Clock::now());
  activity.add(1, DeviceLane::compute, "steps", 0, 0.5, {100, 7});
  activity.add(0, DeviceLane::copy, "sample", 0, 0.25, {30, 0});
  activity.add(0, DeviceLane::copy, "sample", 1, 0.25, {12, 0});
  activity.add(0, DeviceLane::read, "sample", 1, 1, {5, 0});
  const auto totals = activity.totals();
  ASSERT_EQ(totals.size(), 3U);
  EXPECT_EQ(totals[0].lane, DeviceLane::read);
  EXPECT_EQ(totals[1].what, "sample");
  EXPECT_EQ(totals[1].count, 2U);
  EXPECT_EQ(totals[1].seconds, 0.5);
  EXPECT_EQ(totals[1].amount.bytes, 42U);
  EXPECT_EQ(totals[2].device, 1);
  EXPECT_EQ(totals[2].amount.flops, 7);
  const auto counters = activity.counters();
  EXPECT_EQ(counters.bus_bytes, 42U);
  EXPECT_EQ(counters.storage_bytes, 5U);
}

TEST(DeviceActivity, KeepsTheFirstSpansOfEachWork) {
  DeviceActivity activity(Clock::now());
  for (const char* work : {"conv1", "conv2"}) {
    activity.begin(work, 3);
    for (int i = 0; i < 10; ++i) {
      activity.add(0, DeviceLane::copy, "sample", i, 1, {1, 0});
      activity.add(0, DeviceLane::compute, "mini-batches", i, 1, {1, 1});
    }
  }
  std::map<std::string, int> names;
  for (const auto& span : activity.spans()) ++names[span.lane + ", " + span.name];
  EXPECT_EQ(names, (std::map<std::string, int>{{"cuda:0 copy, sample: conv1", 3},
                                               {"cuda:0 copy, sample: conv2", 3},
                                               {"cuda:0 compute, mini-batches: conv1", 3},
                                               {"cuda:0 compute, mini-batches: conv2", 3}}));
  EXPECT_EQ(activity.counters().bus_bytes, 20U);  // of all
}

TEST(DeviceActivity, LongRunsStaySmallAndLateWorkIsSeen) {
  DeviceActivity activity(Clock::now());
  for (int layer = 0; layer < 2000; ++layer) {
    activity.begin("layer " + std::to_string(layer));
    for (int i = 0; i < 300; ++i) activity.add(0, DeviceLane::compute, "steps", i, 1, {});
  }
  const auto spans = activity.spans();
  EXPECT_LE(spans.size(), DeviceActivity::kMostSpans);
  EXPECT_TRUE(std::any_of(spans.begin(), spans.end(), [](const auto& s) { return s.name == "steps: layer 250"; }));
}

TEST(DeviceActivity, MemoryIsThatOfAllDevices) {
  DeviceActivity activity(Clock::now());
  activity.add_device(1, "one", 1000);
  activity.add_device(0, "zero", 500);
  activity.set_memory(0, 100);
  activity.set_memory(1, 300);
  activity.set_memory(1, 50);
  EXPECT_EQ(activity.counters().memory_peak, 400U);
  const auto now = activity.counters();
  EXPECT_EQ(now.memory, 150U);
  EXPECT_EQ(now.memory_peak, 150U);  // since the reading before
  activity.set_storage(1, "a way: its reason");
  activity.add_memory_estimate(1, 320);
  activity.add_memory_estimate(1, 200);
  const auto devices = activity.devices();
  ASSERT_EQ(devices.size(), 2U);
  EXPECT_EQ(devices[0].name, "zero");
  EXPECT_EQ(devices[0].memory_peak, 100U);
  EXPECT_EQ(devices[1].memory_peak, 300U);
  EXPECT_EQ(devices[1].memory_budget, 1000U);
  EXPECT_EQ(devices[1].memory_foretold, 320U);
  EXPECT_EQ(devices[1].storage, "a way: its reason");
}

TEST(DeviceActivity, RunsThatShareAProfileHaveTheirOwnTotals) {
  DeviceActivity activity(Clock::now());
  activity.add_device(0, "zero", 500);
  activity.add(0, DeviceLane::copy, "sample", 0, 1, {30, 0});
  activity.set_memory(0, 100);
  activity.set_memory(0, 0);
  activity.begin_run();
  EXPECT_TRUE(activity.totals().empty());
  EXPECT_TRUE(activity.devices().empty());
  EXPECT_EQ(activity.spans().size(), 1U);
  activity.add_device(0, "zero", 200);
  activity.add(0, DeviceLane::copy, "sample", 2, 1, {12, 0});
  activity.set_memory(0, 40);
  EXPECT_EQ(activity.totals().at(0).amount.bytes, 12U);
  EXPECT_EQ(activity.devices().at(0).memory_budget, 200U);
  EXPECT_EQ(activity.devices().at(0).memory_peak, 40U);
  EXPECT_EQ(activity.counters().bus_bytes, 42U);
}

TEST(DeviceActivity, HasTracksAndCurvesOfItsOwn) {
  Profiler profiler;
  profiler.device().set_memory(0, 3 << 20);
  profiler.device().add(0, DeviceLane::copy, "sample", 0.5, 1, {std::uint64_t{8} << 20, 0});
  profiler.device().add(0, DeviceLane::compute, "sums", 1, 1, {});  // beside the copy
  profiler.checkpoint("here");
  profiler.finish();
  const auto timeline = profiler.timeline();
  EXPECT_EQ(timeline.back().device_copied, std::uint64_t{8} << 20);
  EXPECT_GE(timeline.back().device_memory, std::uint64_t{3} << 20);
  auto spans = profiler.device().spans();
  spans.push_back({"conv", 0, 1});
  const TempDir directory;
  write_trace(directory.path() / "t.json", {}, timeline, spans);
  std::ifstream file(directory.path() / "t.json");
  std::map<std::string, nlohmann::json> tracks;  // by name
  std::set<std::string> curves;
  const auto events = nlohmann::json::parse(file);
  for (const auto& event : events.at("traceEvents")) {
    if (event["name"] == "thread_name") tracks[event["args"]["name"]] = event["tid"];
    if (event["ph"] == "C") curves.insert(event["name"]);
  }
  ASSERT_EQ(tracks.size(), 3U);
  EXPECT_TRUE(tracks.contains("layers"));
  EXPECT_NE(tracks.at("cuda:0 copy"), tracks.at("cuda:0 compute"));
  for (const char* name : {"GPU memory taken by detent (MB)", "bus to the GPU (MB/s)", "storage to the GPU (MB/s)"})
    EXPECT_TRUE(curves.contains(name)) << name;
}

}  // namespace
}  // namespace detent::profile
