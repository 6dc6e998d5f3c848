#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include <sys/resource.h>
#include <sys/stat.h>
#include <algorithm>
#include <csignal>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "profile/profiler.h"
#include "profile/report.h"
#include "profile/trace.h"

namespace detent::profile {
namespace {

namespace fs = std::filesystem;

std::string content(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

ErrorKind kind_of_failure(const fs::path& path) {
  try {
    ReportFile file(path);
  } catch (const Error& error) {
    return error.kind();
  }
  return ErrorKind::internal;
}

TEST(YamlQuoted, RoundTrips) {
  for (const std::string text :
       {"", "plain", "a: b # c", "say \"hi\"", "back\\slash", "two\nlines\r\n\ttab", "\x01\x1b\x7f",
        "Größe 模型 🙂", "\xC2\x85|\xE2\x80\xA8|\xEF\xBB\xBF", "- [x] {y} 'z'"}) {
    const std::string scalar = yaml_quoted(text);
    EXPECT_EQ(scalar.find('\n'), std::string::npos);
    EXPECT_EQ(YAML::Load("v: " + scalar)["v"].as<std::string>(), text) << scalar;
  }
}

TEST(YamlQuoted, SpellsTheUsualNamesPlainly) {
  EXPECT_EQ(yaml_quoted("Quantization (Static) Start"), "\"Quantization (Static) Start\"");
  EXPECT_EQ(yaml_quoted("a\"b\\c\n\x01"), R"("a\"b\\c\n\x01")");
}

TEST(YamlQuoted, ReplacesWhatIsNotUtf8) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(yaml_quoted("a\xFFz"), "\"a" + mark + "z\"");
  EXPECT_EQ(yaml_quoted("\xC0\xAF"), "\"" + mark + mark + "\"");             // overlong
  EXPECT_EQ(yaml_quoted("\xED\xA0\x80"), "\"" + mark + mark + mark + "\"");  // surrogate
  EXPECT_EQ(yaml_quoted("\xE2\x82"), "\"" + mark + mark + "\"");             // cut short
}

TEST(Report, SpellsCheckpointsInTheFixedOrder) {
  EXPECT_EQ(checkpoint_text({"Calibration Start", 1709395204.25, 4.5, 540016640, 340787200, 1363149}),
            "- step: \"Calibration Start\"\n"
            "  timestamp: 1709395204.250000\n"
            "  relative_time_secs: 4.500000\n"
            "  cpu_memory_mb: 515.000\n"
            "  gpu_memory_mb: 0.000\n"
            "  disk_read_mb: 325.000\n"
            "  disk_write_mb: 1.300\n");
}

TEST(Report, SpellsGpuMemory) {
  const std::string text = checkpoint_text({.step = "x", .resident = 3 << 20, .gpu_memory = 5 << 19});
  EXPECT_NE(text.find("  cpu_memory_mb: 3.000\n  gpu_memory_mb: 2.500\n  disk_read_mb: 0.000\n"), std::string::npos);
  Summary summary;
  EXPECT_NE(summary_text(summary).find("\npeak_gpu_memory_mb: 0.000\n"), std::string::npos);
  summary.peak_gpu_memory = 7 << 20;
  EXPECT_NE(summary_text(summary).find("\npeak_gpu_memory_mb: 7.000\ntotal_disk_read_mb:"), std::string::npos);
}

TEST(Report, SpellsTheSummaryInTheFixedOrder) {
  Summary summary{.seconds = 35.5,
                  .cpu_seconds = 70.25,
                  .peak_memory = 768 << 20,
                  .peak_anonymous = 512 << 20,
                  .disk_read = 906 << 20,
                  .disk_written = 3 << 19,
                  .peak_directories = 1 << 20,
                  .stages = {{"Calibration", 16.5, 700 << 20, 0}}};
  const std::string expected =
      "\n# Summary Metrics\n"
      "total_quantization_time_seconds: 35.5000\n"
      "peak_memory_mb: 768.000\n"
      "peak_gpu_memory_mb: 0.000\n"
      "total_disk_read_mb: 906.000\n"
      "total_disk_write_mb: 1.500\n"
      "peak_cache_dir_disk_usage_mb: 1.000\n"
      "peak_anonymous_memory_mb: 512.000\n"
      "cpu_time_seconds: 70.2500\n"
      "stages:\n"
      "- name: \"Calibration\"\n"
      "  seconds: 16.5000\n"
      "  peak_memory_mb: 700.000\n"
      "\n# Metric Definitions:\n#\n";
  EXPECT_EQ(summary_text(summary).substr(0, expected.size()), expected);
  summary.peak_directories = 0;
  summary.stages.clear();
  EXPECT_EQ(summary_text(summary).find("peak_cache_dir_disk_usage_mb:"),
            summary_text(summary).find("peak_cache_dir_disk_usage_mb: Peak"));
  EXPECT_TRUE(YAML::Load(summary_text(summary))["stages"].IsSequence());
}

TEST(ReportFile, CannotBeCreated) {
  const TempDir directory;
  EXPECT_EQ(kind_of_failure(directory.path() / "missing" / "p.yaml"), ErrorKind::usage);
  EXPECT_EQ(kind_of_failure(directory.path()), ErrorKind::usage);
}

TEST(ReportFile, ReplacesProfilesAndNothingElse) {
  const TempDir directory;
  const fs::path path = directory.path() / "p.yaml";
  for (const std::string earlier : {"", "# detent profile\n\nmemory_usage:\n", "# Quark Profiling Results\n\n"}) {
    std::ofstream(path) << earlier;
    ReportFile(path).append("new");
    EXPECT_EQ(content(path), "new");
  }
  const std::string model("\x08\x0a\x12\x04 model", 10);
  std::ofstream(path, std::ios::binary) << model;
  EXPECT_EQ(kind_of_failure(path), ErrorKind::usage);
  EXPECT_EQ(content(path), model);
}

TEST(ReportFile, KeepsWholeRecordsWhenTheDiskIsFull) {
  const TempDir directory;
  const fs::path path = directory.path() / "p.yaml";
  ReportFile file(path);
  const std::string record = checkpoint_text({.step = "whole"});
  file.append(record);
  EXPECT_FALSE(file.failure());

  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit tight{record.size() + 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  file.append(record);  // ten bytes of it fit
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);

  file.append(record);
  EXPECT_EQ(content(path), record);
  try {
    std::rethrow_exception(file.failure());
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::resource);
  }
}

using nlohmann::json;

constexpr std::string_view kOpen = R"(<script type="application/json" id="data">)";
constexpr std::string_view kClose = "</script>";

/// What stands in the page's data block.
std::string data_of(const std::string& page) {
  const std::size_t start = page.find(kOpen) + kOpen.size();
  return page.substr(start, page.find(kClose, start) - start);
}

std::size_t occurrences(std::string_view text, std::string_view word) {
  std::size_t n = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + word.size())) ++n;
  return n;
}

TEST(HtmlReport, KeepsTheData) {
  const json data{{"title", "a model"}, {"summary", {{"seconds", 1.5}}}, {"notes", {"ünïcode ✓ 😀", "tab\t \"quote\""}}};
  EXPECT_EQ(json::parse(data_of(html_report(data.dump()))), data);
}

TEST(HtmlReport, NoNameEndsTheDataBlock) {
  const std::string clean = html_report("{}");
  for (const std::string name :
       {"</script><img src=x onerror=alert(1)>", "<!--<script>", "</SCRIPT\n>", "]]>--></title>"}) {
    const json data{{"tensors", {{{"name", name}}}}};
    const std::string page = html_report(data.dump());
    EXPECT_EQ(data_of(page).find('<'), std::string::npos) << name;
    EXPECT_EQ(json::parse(data_of(page)), data);
    EXPECT_EQ(occurrences(page, "<script"), occurrences(clean, "<script")) << name;
    EXPECT_EQ(page.find("<img"), std::string::npos) << name;
  }
}

TEST(HtmlReport, LineSeparatorsAreEscaped) {
  const std::string page =
      data_of(html_report("{\"title\":\"a\xE2\x80\xA8"
                          "b\xE2\x80\xA9"
                          "c\"}"));
  EXPECT_EQ(page, R"({"title":"a\u2028b\u2029c"})");
}

TEST(HtmlReport, BytesThatAreNotUtf8AreReplaced) {
  const std::string replacement = "\xEF\xBF\xBD";
  const auto title = [](std::string_view bytes) {
    return json::parse(data_of(html_report("{\"title\":\"" + std::string(bytes) + "\"}")))["title"].get<std::string>();
  };
  EXPECT_EQ(title("a\xFF"
                  "b"),
            "a" + replacement + "b");
  EXPECT_EQ(title("\xC0\xAF"), replacement + replacement);                    // overlong
  EXPECT_EQ(title("\xED\xA0\x80"), replacement + replacement + replacement);  // surrogate
  EXPECT_EQ(title("\xF4\x90\x80\x80").size(), 4 * replacement.size());        // beyond Unicode
  EXPECT_EQ(title("\xE2\x82"), replacement + replacement);                    // cut off
  EXPECT_EQ(title("\xF0\x9F\x98\x80"), "\xF0\x9F\x98\x80");
  EXPECT_NE(html_report("\xE2").find(replacement), std::string::npos);
}

TEST(HtmlReport, NothingCountsAsAnEmptyReport) {
  EXPECT_EQ(data_of(html_report("")), "{}");
  EXPECT_EQ(data_of(html_report(" \n\t")), "{}");
}

TEST(HtmlReport, AsksForNothing) {
  const std::string page = html_report("{}");
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  for (const std::string_view word :
       {"src=", "href=\"", "@import", "url(", "fetch(", "XMLHttpRequest", "sourceMappingURL"}) {
    EXPECT_EQ(page.find(word), std::string::npos) << word;
  }
  // Addresses: the home pages of D3's modules in comments, and names of XML namespaces.
  std::size_t allowed = occurrences(page, "// https://d3js.org");
  for (const std::string_view name : {"2000/svg", "1999/xhtml", "1999/xlink", "XML/1998/namespace", "2000/xmlns/"}) {
    allowed += occurrences(page, "http://www.w3.org/" + std::string(name));
  }
  EXPECT_EQ(occurrences(page, "http://") + occurrences(page, "https://"), allowed);
}

TEST(HtmlReport, IsWholeAndSmall) {
  const std::string page = html_report("{}");
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  EXPECT_LT(page.size(), 500'000U);
  for (const std::string_view part : {"@STYLE@", "@LICENSE@", "@LIBRARY@", "@DATA@", "@SCRIPT@"}) {
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  }
  EXPECT_NE(page.find("Mike Bostock\n\nPermission to use"), std::string::npos) << "the licence of D3 is missing";
}

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
