#include "profile/report.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <yaml-cpp/yaml.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <string>

#include "base/error.h"

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

}  // namespace
}  // namespace detent::profile
