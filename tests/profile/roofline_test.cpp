#include "profile/report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <regex>
#include <set>
#include <sstream>
#include <string>

namespace detent::profile {
namespace {

using Bound = Bottleneck::Bound;

constexpr double kG = 1e9;
const MachinePeaks kMachine{100 * kG, 20 * kG, 1 * kG, 4, 10 * kG};
constexpr const char* kStages[] = {"Pre-process",
                                   "Float Model Validation",
                                   "Calibration",
                                   "Post-process",
                                   "Quantization (Static)",
                                   "Quantization (Dynamic)",
                                   "Fast Finetune",
                                   "Quantization (MatMulNBits)",
                                   "Model Caching",
                                   "Model Loaded",
                                   "Calibration on a GPU",
                                   "Fast Finetune on a GPU",
                                   "a step of the caller's own"};
/// For each bound, and for a busy processor, work that makes it so.
const Work kWorks[] = {{.seconds = 10, .flops = 900 * kG},    {.seconds = 10, .memory_bytes = 150 * kG},
                       {.seconds = 10, .disk_bytes = 9 * kG}, {.seconds = 10, .bus_bytes = 80 * kG},
                       {.seconds = 10, .cpu_seconds = 2},     {.seconds = 10, .cpu_seconds = 9.5},
                       {.seconds = 10, .cpu_seconds = 39},    {.seconds = 10, .cpu_seconds = 2, .pressure_seconds = 9}};

TEST(Roofline, TheLargestShareIsTheBound) {
  const struct {
    Work work;
    Bound bound;
    double share;
  } cases[] = {
      {{.seconds = 10, .flops = 900 * kG, .memory_bytes = 100 * kG, .disk_bytes = kG}, Bound::compute, 0.9},
      {{.seconds = 10, .flops = 400 * kG, .memory_bytes = 160 * kG, .cpu_seconds = 40}, Bound::memory, 0.8},
      {{.seconds = 10, .flops = 400 * kG, .memory_bytes = 20 * kG, .disk_bytes = 7 * kG}, Bound::disk, 0.7},
      {{.seconds = 10, .flops = 300 * kG, .disk_bytes = kG, .bus_bytes = 60 * kG}, Bound::transfer, 0.6},
      {{.seconds = 10, .flops = 200 * kG, .memory_bytes = 10 * kG, .cpu_seconds = 8}, Bound::waiting, 0.2},
      {{.seconds = 10, .flops = 250 * kG}, Bound::compute, 0.25},
      {{.seconds = 10, .flops = 249 * kG}, Bound::waiting, 0.249},
  };
  for (const auto& c : cases) {
    const Bottleneck verdict = find_bottleneck(c.work, kMachine, "Calibration");
    EXPECT_EQ(verdict.bound, c.bound) << bound_name(verdict.bound);
    EXPECT_NEAR(verdict.share, c.share, 1e-9);
    EXPECT_FALSE(verdict.advice.empty());
  }
}

TEST(Roofline, BusyWithOtherWorkIsNotWaiting) {
  const Work work{.seconds = 10, .flops = 50 * kG, .memory_bytes = 20 * kG, .cpu_seconds = 30};
  const Bottleneck verdict = find_bottleneck(work, kMachine, "Calibration");
  EXPECT_EQ(verdict.bound, Bound::compute);
  EXPECT_NEAR(verdict.share, 0.05, 1e-9);
  EXPECT_NE(verdict.advice.find("--method minmax"), std::string::npos);
}

TEST(Roofline, WaitingForOtherProgramsIsContention) {
  const Work work{.seconds = 10, .flops = 50 * kG, .cpu_seconds = 12, .pressure_seconds = 4};
  const Bottleneck verdict = find_bottleneck(work, kMachine, "Calibration");
  EXPECT_EQ(verdict.bound, Bound::contention);
  EXPECT_NE(verdict.advice.find("Other programs"), std::string::npos);
  Work busy = work;
  busy.cpu_seconds = 30;  // whoever waited, it was not this run
  EXPECT_EQ(find_bottleneck(busy, kMachine, "Calibration").bound, Bound::compute);
  Work calm = work;
  calm.pressure_seconds = 2;
  EXPECT_EQ(find_bottleneck(calm, kMachine, "Calibration").bound, Bound::waiting);
}

TEST(Roofline, MoreThanThePeakIsThePeak) {
  EXPECT_DOUBLE_EQ(find_bottleneck({.seconds = 1, .disk_bytes = 3 * kG}, kMachine, "Post-process").share, 1);
}

TEST(Roofline, UnknownFiguresHaveNoPart) {
  EXPECT_EQ(find_bottleneck({}, kMachine, "Calibration").bound, Bound::waiting);
  EXPECT_EQ(find_bottleneck({}, {}, "").bound, Bound::waiting);
  EXPECT_DOUBLE_EQ(find_bottleneck({}, {}, "").share, 0);
  EXPECT_EQ(find_bottleneck({.seconds = 1, .flops = 1e12}, {}, "x").bound, Bound::waiting);
  EXPECT_EQ(find_bottleneck({.seconds = -1, .flops = 1e12}, kMachine, "x").bound, Bound::waiting);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Bottleneck verdict = find_bottleneck({.seconds = 1, .flops = nan, .disk_bytes = 0.5 * kG}, kMachine, "x");
  EXPECT_EQ(verdict.bound, Bound::disk);
  EXPECT_DOUBLE_EQ(verdict.share, 0.5);
}

TEST(Roofline, AdviceIsOneSentence) {
  for (const char* stage : kStages) {
    for (const Work& work : kWorks) {
      const std::string advice = find_bottleneck(work, kMachine, stage).advice;
      EXPECT_EQ(advice.find('.'), advice.size() - 1) << advice;
      EXPECT_EQ(advice.find('\n'), std::string::npos);
    }
  }
}

/// The page of all options, which is generated from their rows.
std::string page_of_options() {
  const auto path = std::filesystem::path(DETENT_TEST_DATA) / "../../../docs/options.md";
  std::ostringstream text;
  text << std::ifstream(path.lexically_normal()).rdbuf();
  return text.str();
}

TEST(Roofline, AdviceNamesOnlyOptionsThatExist) {
  const std::string page = page_of_options();
  ASSERT_NE(page.find("`--threads "), std::string::npos);
  const std::regex option("--[a-z][a-z-]*[a-z]");
  std::set<std::string> named;
  for (const char* stage : kStages) {
    for (const Work& work : kWorks) {
      const std::string advice = find_bottleneck(work, kMachine, stage).advice;
      for (std::sregex_iterator it(advice.begin(), advice.end(), option), end; it != end; ++it) named.insert(it->str());
    }
  }
  EXPECT_TRUE(named.contains("--workers"));
  for (const std::string& name : named) {
    EXPECT_TRUE(page.find(name + ' ') != std::string::npos || page.find(name + '`') != std::string::npos)
        << name << " is no option of detent";
  }
}

}  // namespace
}  // namespace detent::profile
