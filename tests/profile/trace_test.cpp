#include "profile/trace.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "profile/profiler.h"

namespace detent::profile {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kMiB = 1 << 20;

StageTime stage(const std::string& name, double start, double seconds) {
  StageTime time;
  time.name = name;
  time.start = start;
  time.seconds = seconds;
  return time;
}

/// Writes a trace and reads it back.
json written(const std::vector<StageTime>& stages, const std::vector<TimelinePoint>& timeline,
             const std::vector<TraceSpan>& layers) {
  const TempDir directory;
  const fs::path path = directory.path() / "trace.json";
  write_trace(path, stages, timeline, layers);
  std::ifstream file(path);
  return json::parse(file).at("traceEvents");
}

std::vector<json> of_phase(const json& events, const std::string& phase) {
  std::vector<json> found;
  for (const json& event : events) {
    if (event.at("ph") == phase) found.push_back(event);
  }
  return found;
}

TEST(Trace, StagesAndLayersAreBarsOnTheirOwnTracks) {
  const json events = written({stage("Calibration", 0.5, 2), stage("inside", 0.75, 0.25)}, {},
                              {{"conv1", 1, 0.125}, {"conv2", 1.5, 0}});
  const auto bars = of_phase(events, "X");
  ASSERT_EQ(bars.size(), 4u);
  EXPECT_EQ(bars[0]["name"], "Calibration");
  EXPECT_EQ(bars[0]["ts"], 500000.0);
  EXPECT_EQ(bars[0]["dur"], 2000000.0);
  EXPECT_EQ(bars[0]["cat"], "stages");
  EXPECT_EQ(bars[1]["tid"], bars[0]["tid"]);  // nested, so one on the other
  EXPECT_EQ(bars[2]["name"], "conv1");
  EXPECT_EQ(bars[2]["cat"], "layers");
  EXPECT_NE(bars[2]["tid"], bars[0]["tid"]);
  std::map<json, std::string> tracks;
  for (const json& event : of_phase(events, "M")) {
    if (event["name"] == "thread_name") tracks[event["tid"]] = event["args"]["name"];
    if (event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], "detent");
    }
  }
  EXPECT_EQ(tracks[bars[0]["tid"]], "stages");
  EXPECT_EQ(tracks[bars[2]["tid"]], "layers");
}

TEST(Trace, OverlappingBarsGetTracksOfTheirOwn) {
  const json events = written({}, {}, {{"a", 0, 2}, {"b", 1, 2}, {"c", 1.5, 2}, {"d", 2, 0.5}, {"e", 4, 1}});
  std::map<std::string, int> track;
  for (const json& bar : of_phase(events, "X")) track[bar["name"]] = bar["tid"];
  EXPECT_EQ((std::set<int>{track["a"], track["b"], track["c"]}).size(), 3u);
  EXPECT_EQ(track["d"], track["a"]);  // begins where a ends
  EXPECT_EQ(track["e"], track["a"]);
}

TEST(Trace, CurvesFollowTheTimeline) {
  const std::vector<TimelinePoint> points{
      {.time = 0, .resident = 10 * kMiB, .anonymous = 4 * kMiB},
      {.time = 0.5, .resident = 30 * kMiB, .anonymous = 8 * kMiB, .disk_read = 5 * kMiB, .disk_written = kMiB},
      {.time = 1, .resident = 20 * kMiB, .anonymous = 40 * kMiB, .disk_read = 5 * kMiB, .disk_written = 3 * kMiB}};
  std::vector<json> memory, disk;
  for (const json& event : of_phase(written({}, points, {}), "C")) {
    (event["name"] == "memory (MB)" ? memory : disk).push_back(event);
  }
  ASSERT_EQ(memory.size(), 3u);
  ASSERT_EQ(disk.size(), 3u);
  EXPECT_EQ(memory[1]["ts"], 500000.0);
  EXPECT_EQ(memory[1]["args"]["anonymous"], 8.0);
  EXPECT_EQ(memory[1]["args"]["file-backed"], 22.0);
  EXPECT_EQ(memory[2]["args"]["file-backed"], 0.0);
  EXPECT_EQ(disk[0]["args"]["read"], 10.0);
  EXPECT_EQ(disk[0]["args"]["write"], 2.0);
  EXPECT_EQ(disk[1]["args"]["write"], 4.0);
  EXPECT_EQ(disk[2]["args"]["write"], 0.0);
}

TEST(Trace, GpuIsThereWhenItWasUsed) {
  const auto has_gpu = [](const json& events) {
    return std::any_of(events.begin(), events.end(), [](const json& e) { return e["name"] == "GPU memory (MB)"; });
  };
  EXPECT_FALSE(has_gpu(written({}, {{.time = 0}}, {})));
  EXPECT_TRUE(has_gpu(written({}, {{.time = 0}, {.time = 1, .gpu_memory = 3 * kMiB}}, {})));
}

TEST(Trace, AnyNameIsGood) {
  const std::vector<std::string> names{"", "a \"b\" \\ \n\t\x01\x7f", "/layer/Conv_0:0", "模型 🙂",
                                       "</script>{}%s{0}"};
  std::vector<TraceSpan> layers;
  for (std::size_t i = 0; i < names.size(); ++i) layers.push_back({names[i], static_cast<double>(i), 0.5});
  layers.push_back({"bad \xFF\xC0 bytes", 100, 1});
  const auto bars = of_phase(written({}, {}, layers), "X");
  ASSERT_EQ(bars.size(), layers.size());
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(bars[i]["name"], names[i]);
  EXPECT_EQ(bars.back()["name"], "bad \xEF\xBF\xBD\xEF\xBF\xBD bytes");
}

TEST(Trace, TimesAreInOrderAndFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const json events = written({stage("late", 9, 1), stage("early", 1, 100)}, {{.time = 0.5}, {.time = 3}},
                              {{"a", nan, 1}, {"b", 4, infinity}, {"c", -7, -7}, {"d", 2, nan}});
  double last = 0;
  for (const json& event : events) {
    if (!event.contains("ts")) continue;
    ASSERT_TRUE(event["ts"].is_number());
    EXPECT_GE(event["ts"].get<double>(), last);
    last = event["ts"].get<double>();
    EXPECT_GE(event.value("dur", 0.0), 0);
  }
}

TEST(Trace, LanesOfAnyNameAndTimesOfAnyLengthMakeJson) {
  const json events = written({stage("s", 1e308, 1e308)}, {{.time = 1e308}}, {{"a", 1e308, 1e308, "\"}\xFF</script>"}});
  const auto bars = of_phase(events, "X");
  ASSERT_EQ(bars.size(), 2u);
  EXPECT_LE(bars[0]["ts"].get<double>(), 1e15);
}

TEST(Trace, NothingMakesAnEmptyTrace) { EXPECT_EQ(of_phase(written({}, {}, {}), "X").size(), 0u); }

TEST(Trace, ReplacesTracesAndNothingElse) {
  const TempDir directory;
  const fs::path path = directory.path() / "out";
  const auto kind = [&](const fs::path& target) {
    try {
      write_trace(target, {}, {}, {});
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::internal;  // no error
  };
  EXPECT_EQ(kind(path), ErrorKind::internal);
  EXPECT_EQ(kind(path), ErrorKind::internal);  // over the one before
  std::ofstream(directory.path() / "empty").close();
  EXPECT_EQ(kind(directory.path() / "empty"), ErrorKind::internal);
  std::ofstream(path) << "a model, perhaps";
  EXPECT_EQ(kind(path), ErrorKind::usage);
  std::ostringstream kept;
  kept << std::ifstream(path).rdbuf();
  EXPECT_EQ(kept.str(), "a model, perhaps");
  EXPECT_EQ(kind(directory.path()), ErrorKind::usage);
  EXPECT_EQ(kind("/dev/null"), ErrorKind::usage);
  EXPECT_EQ(kind(directory.path() / "missing" / "trace.json"), ErrorKind::usage);
}

TEST(Trace, OfARealRun) {
  Profiler profiler;
  {
    const Scope outer = profiler.scope(Step::calibration);
    const double start = profiler.now();
    const Scope inner = profiler.scope("mine");
    profiler.add_span("conv", start, profiler.now() - start);
  }
  profiler.finish();
  const json events = written(profiler.stages(), profiler.timeline(), profiler.spans());
  EXPECT_EQ(of_phase(events, "X").size(), 3u);
  EXPECT_GE(of_phase(events, "C").size(), 2u);
}

}  // namespace
}  // namespace detent::profile
