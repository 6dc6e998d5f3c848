#include "cli/output/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/output/output.h"

namespace detent::cli {
namespace {

using namespace std::chrono_literals;
using Clock = ProgressLine::Clock;

/// What is printed to a stream that lives in memory.
class Output {
 public:
  Output() : file_(::open_memstream(&text_, &size_)) {}
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  ~Output() {
    std::fclose(file_);
    std::free(text_);
  }
  std::FILE* file() { return file_; }
  std::string text() {
    std::fflush(file_);
    return {text_, size_};
  }
  std::vector<std::string> lines() {
    std::vector<std::string> result(1);
    for (const char c : text()) {
      if (c == '\n') {
        result.emplace_back();
      } else {
        result.back() += c;
      }
    }
    result.pop_back();
    return result;
  }

 private:
  char* text_ = nullptr;
  std::size_t size_ = 0;
  std::FILE* file_;
};

constexpr Clock::time_point kStart{1000h};

TEST(Progress, ShortRunsLeaveLogsEmpty) {
  Output out;
  {
    ProgressLine line(out.file(), false, kStart);
    for (int i = 0; i < 99; ++i) line.update("calibrate", i, 99, kStart + i * 100ms);
    line.finish(kStart + 9900ms);
  }
  EXPECT_EQ(out.text(), "");
}

TEST(Progress, LongRunsWriteALineNowAndThen) {
  Output out;
  {
    ProgressLine line(out.file(), false, kStart);
    for (int i = 1; i <= 450; ++i) line.update("calibrate", i, 450, kStart + i * 100ms);
    line.finish(kStart + 46s);
  }
  const auto lines = out.lines();  // at 10, 20, 30 and 40 s and at the end
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_TRUE(lines[0].starts_with("calibrate: 100 of 450  10.0/s  35 s left  memory ")) << lines[0];
  EXPECT_NE(lines[0].find(", peak "), std::string::npos);
  EXPECT_TRUE(lines[4].starts_with("calibrate: 450 of 450  ")) << lines[4];
  EXPECT_EQ(lines[4].find("left"), std::string::npos);
  for (const std::string& text : lines) {
    EXPECT_TRUE(std::none_of(text.begin(), text.end(), [](unsigned char c) { return std::iscntrl(c) != 0; })) << text;
  }
}

TEST(Progress, TheLastLineIsNotWrittenTwice) {
  Output out;
  ProgressLine line(out.file(), false, kStart);
  line.update("calibrate", 1, 2, kStart + 1s);
  line.update("calibrate", 2, 2, kStart + 12s);
  line.finish(kStart + 12s);
  line.finish(kStart + 30s);
  EXPECT_EQ(out.lines().size(), 1u);
}

TEST(Progress, TerminalLineIsRewrittenAndCleared) {
  Output out;
  ProgressLine line(out.file(), true, kStart);
  for (int i = 0; i < 10; ++i) line.update("calibrate", i, 10, kStart + i * 30ms);
  const std::string text = out.text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\r'), 3);  // at 0, 120 and 240 ms
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_NE(text.find("calibrate: 8 of 10  33.3/s  0 s left  memory "), std::string::npos) << text;
  line.finish(kStart + 1s);
  EXPECT_TRUE(out.text().ends_with("\r\x1b[K"));
  const auto length = out.text().size();
  line.finish(kStart + 2s);
  EXPECT_EQ(out.text().size(), length);
}

TEST(Progress, RateIsThatOfTheStage) {
  Output out;
  ProgressLine line(out.file(), true, kStart);
  line.update("one", 1000, 0, kStart + 1s);
  line.update("two", 1, 361, kStart + 100s);
  line.update("two", 2, 361, kStart + 120s);
  EXPECT_NE(out.text().find("two: 2 of 361  0.05/s  1:59:40 left"), std::string::npos) << out.text();
  EXPECT_NE(out.text().find("one: 1000  memory"), std::string::npos);
}

TEST(Progress, DetailStandsBeforeTheMemory) {
  Output out;
  ProgressLine line(out.file(), true, kStart);
  line.set_detail("Conv_3: error 0.5 -> 0.2");
  line.update("finetune", 1, 3, kStart + 1s);
  EXPECT_NE(out.text().find("finetune: 1 of 3  Conv_3: error 0.5 -> 0.2  memory"), std::string::npos) << out.text();
  line.update("accuracy", 1, 3, kStart + 2s);
  EXPECT_NE(out.text().find("accuracy: 1 of 3  memory"), std::string::npos) << out.text();
}

TEST(Progress, MoreThanExpectedIsShownWithoutTheTotal) {
  Output out;
  ProgressLine line(out.file(), true, kStart);
  line.update("calibrate", 7, 3, kStart + 1s);
  EXPECT_EQ(out.text().find(" of 3"), std::string::npos);
}

TEST(Progress, NamesCannotMoveTheCursorOrBreakTheLine) {
  Output out;
  ProgressLine line(out.file(), true, kStart);
  line.update("a\nb\x1b[2J" + std::string(500, 'x'), 1, 2, kStart + 1s);
  const std::string text = out.text();
  EXPECT_TRUE(text.starts_with("\ra?b?[2Jxxx"));
  EXPECT_EQ(text.size(), 1 + 79 + 3u);
}

TEST(Progress, StagesThatTakeTurnsCountTogether) {
  Overall overall({{"samples", 1}, {.name = "solve", .share = 2, .takes_turns = true}, {"weights", 1}});
  overall.update("samples", 2, 8);
  EXPECT_DOUBLE_EQ(overall.done(), 0.0625);
  overall.update("solve", 1, 4);
  EXPECT_DOUBLE_EQ(overall.done(), 0.1875);
  overall.update("samples", 4, 8);
  EXPECT_DOUBLE_EQ(overall.done(), 0.25);
  overall.update("weights", 1, 2);
  EXPECT_DOUBLE_EQ(overall.done(), 0.875);
  overall.update("samples", 8, 8);
  EXPECT_DOUBLE_EQ(overall.done(), 0.875);
}

TEST(Progress, TheShareOfTheRunNeverFalls) {
  Overall overall({{"calibrate", 1}, {"accuracy", 2, 2}, {"finetune", 1}});
  EXPECT_FALSE(overall.is_known());
  const auto after = [&](const char* stage, int done, int total) {
    overall.update(stage, done, total);
    return overall.done();
  };
  EXPECT_DOUBLE_EQ(after("calibrate", 2, 4), 0.125);
  EXPECT_DOUBLE_EQ(after("calibrate", 3, 0), 0.125);  // nobody knows of how many
  EXPECT_DOUBLE_EQ(after("calibrate", 9, 4), 0.25);
  EXPECT_DOUBLE_EQ(after("accuracy", 5, 5), 0.5);
  EXPECT_DOUBLE_EQ(after("accuracy", 0, 5), 0.5);  // it starts over
  EXPECT_DOUBLE_EQ(after("accuracy", 5, 5), 0.75);
  EXPECT_DOUBLE_EQ(after("accuracy", 1, 5), 0.75);  // more often than as a rule
  EXPECT_DOUBLE_EQ(after("calibrate", 4, 4), 0.75);
  EXPECT_DOUBLE_EQ(after("unheard of", 4, 4), 0.75);
  EXPECT_DOUBLE_EQ(after("finetune", 1, 1), 1.0);
}

TEST(Progress, FormsHaveTheStagesThatTheyGoThrough) {
  const auto names = [](const QuantizeOptions& options) {
    std::vector<std::string> found;
    for (const auto& stage : expected_stages(options)) found.push_back(stage.name);
    return found;
  };
  QuantizeOptions options;
  options.calibration_data = "samples";
  const auto integers = names(options);
  EXPECT_NE(std::find(integers.begin(), integers.end(), "accuracy: each value"), integers.end());
  EXPECT_EQ(integers[integers.size() - 2], "proof");
  EXPECT_EQ(integers.back(), "latency");
  options.config.preset = "none";
  options.config.float_type = FloatType::float16;
  EXPECT_EQ(names(options), (std::vector<std::string>{kOpening, "calibrate", "proof", "compare", "latency"}));
  options.bench = false;
  options.report = "report.html";
  options.config.float_type = FloatType::keep;
  EXPECT_EQ(names(options), (std::vector<std::string>{kOpening, "calibrate", "proof", "compare"}));
  options.weights_only.enabled = true;
  options.report.reset();
  options.calibration_data.reset();
  EXPECT_EQ(names(options), (std::vector<std::string>{"weights (MiB)"}));
}

TEST(Progress, StagesThatARunLeavesOutCountForNothing) {
  Overall overall({{"calibrate", 1}, {"accuracy", 6}, {"finetune", 1}});
  overall.update("calibrate", 1, 1);
  EXPECT_DOUBLE_EQ(overall.done(), 0.125);
  overall.update("finetune", 1, 2);
  EXPECT_DOUBLE_EQ(overall.done(), 0.75);
}

TEST(Progress, SharesFollowWhatTheRunFindsOut) {
  Overall overall({{kOpening, 1}, {.name = "calibrate", .share = 1, .work = 16}, {"trials", 2}, {"finetune", 4}});
  overall.update("calibrate", 0, 48);  // three times the samples that the share is for
  EXPECT_DOUBLE_EQ(overall.done(), 0.1);
  overall.update("calibrate", 48, 48);
  EXPECT_DOUBLE_EQ(overall.done(), 0.4);
  overall.expect("trials", 3);
  overall.expect("finetune", 0);
  overall.expect("calibrate", 9);  // it has begun
  overall.expect("unheard of", 2);
  overall.update("trials", 1, 2);
  EXPECT_DOUBLE_EQ(overall.done(), 0.7);
  overall.update("trials", 2, 2);
  EXPECT_DOUBLE_EQ(overall.done(), 1.0);
}

TEST(Progress, WithTheStagesOfTheRunTheTimeLeftIsTheRuns) {
  Output out;
  ProgressLine line(out.file(), true, kStart);
  line.expect({{"calibrate", 1}, {"finetune", 3}});
  line.update("calibrate", 1, 2, kStart + 10s);
  EXPECT_NE(out.text().find("\rcalibrate: 1 of 2  12 % of the run, 70 s left  memory"), std::string::npos)
      << out.text();
  line.update("finetune", 1, 3, kStart + 100s);
  EXPECT_NE(out.text().find("\rfinetune: 1 of 3  50 % of the run, 1:40 left  memory"), std::string::npos) << out.text();
  line.update("finetune", 3, 3, kStart + 200s);
  EXPECT_NE(out.text().find("\rfinetune: 3 of 3  0.02/s  100 % of the run  memory"), std::string::npos) << out.text();
}

TEST(Progress, WhoWantsNoneGetsNone) {
  Output out;
  ProgressLine line(out.file(), true, kStart);
  EXPECT_FALSE(progress_to(line, true));
  progress_to(line, false)("calibrate", 1, 2);
  EXPECT_NE(out.text(), "");
}

std::string printed(const std::vector<std::string>& notes, bool verbose) {
  testing::internal::CaptureStderr();
  print_notes(notes, verbose, "q8");
  return testing::internal::GetCapturedStderr();
}

TEST(Notes, OneStandsForThoseThatDifferInNamesAlone) {
  const std::vector<std::string> notes{"graph: opset 11 was raised to 13", "Conv 'a b': the bias 'c' stays in float",
                                       "2.0 dB from the float model's",    "Conv 'd': the bias 'e' stays in float",
                                       "3.0 dB from the float model's",    "Conv 'd': the bias 'e' stays in float"};
  EXPECT_EQ(printed(notes, false),
            "detent: note: q8: Conv 'a b': the bias 'c' stays in float (and 1 more like this)\n"
            "detent: note: q8: 2.0 dB from the float model's\n"
            "detent: note: q8: 3.0 dB from the float model's\n");
  EXPECT_EQ(printed(notes, true),
            "detent: note: q8: graph: opset 11 was raised to 13\n"
            "detent: note: q8: Conv 'a b': the bias 'c' stays in float\n"
            "detent: note: q8: 2.0 dB from the float model's\n"
            "detent: note: q8: Conv 'd': the bias 'e' stays in float\n"
            "detent: note: q8: 3.0 dB from the float model's\n");
}

}  // namespace
}  // namespace detent::cli
