// A user's command: what it prints, how it is ended, and what its scores are worth.
#include "run/comparison/proof.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/file.h"
#include "data/support.h"
#include "run/command.h"

namespace detent::run {
namespace {

namespace fs = std::filesystem;
using data::test::expect_error;

TEST(ScoreCommand, IsTheLastNumberPrinted) {
  EXPECT_DOUBLE_EQ(score_by_command("echo epoch 3: 0.25 0.75 done; :", "m.onnx", {}), 0.75);
  EXPECT_DOUBLE_EQ(score_by_command("echo -1e-2; :", "m.onnx", {}), -0.01);
  EXPECT_DOUBLE_EQ(score_by_command("echo 3; (sleep 0.2; echo 4) & :", "m.onnx", {}), 4) << "of all that write to it";
  EXPECT_DOUBLE_EQ(score_by_command("echo 2; exec >&-; sleep 0.1; :", "m.onnx", {}), 2)
      << "output ends before the shell";
}

TEST(ScoreCommand, GetsThePathQuotedAndNoInput) {
  TempDir folder;
  const fs::path model = folder.path() / "it's a \"model\".onnx";
  std::ofstream(model) << "12345";
  EXPECT_DOUBLE_EQ(score_by_command("wc -c <", model, {}), 5);
  EXPECT_DOUBLE_EQ(score_by_command("cat | wc -c; :", model, {}), 0);
}

TEST(ScoreCommand, FailsWithItsStatusOrWithoutANumber) {
  expect_error([] { score_by_command("exit 7;", "m", {}); }, {"ended with status 7"});
  expect_error([] { score_by_command("kill -9 $$;", "m", {}); }, {"ended with status 137"});
  expect_error([] { score_by_command("echo none; :", "m", {}); }, {"printed no number"});
}

// A command that writes the numbers of its processes into a file, then does something for long.
class EndedCommand : public testing::Test {
 protected:
  std::string writing_to(const fs::path& pids, const std::string& then) const {
    return "sh -c 'echo $$ >> \"" + pids.string() + "\"; " + then + "' & echo $$ >> \"" + pids.string() + "\"; " +
           then + ";";
  }
  std::vector<pid_t> running() const {
    std::ifstream in(pids_);
    std::vector<pid_t> found;
    for (pid_t pid = 0; in >> pid;) found.push_back(pid);
    return found;
  }
  void wait_for_processes() const {
    while (running().size() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // Zombies of processes that init has not collected yet have no command line.
  static bool lives(pid_t pid) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline");
    return in && in.peek() != std::ifstream::traits_type::eof();
  }
  void expect_end(const std::string& then) {
    std::stop_source source;
    std::jthread stopper([&] {
      wait_for_processes();
      source.request_stop();
    });
    expect_error([&] { score_by_command(writing_to(pids_, then), "m", source.get_token()); }, {},
                 ErrorKind::interrupted);
    for (const pid_t pid : running()) {
      for (int i = 0; i < 10000 && lives(pid); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_FALSE(lives(pid)) << pid;
    }
  }

  TempDir folder_;
  fs::path pids_ = folder_.path() / "pids";
};

// What does not end is ended by ctest's limit.
TEST_F(EndedCommand, AStopEndsAllOfIt) { expect_end("sleep 1000"); }

TEST_F(EndedCommand, WhatIgnoresThatIsKilled) { expect_end("trap \"\" TERM INT; while :; do sleep 1; done"); }

TEST_F(EndedCommand, KillingItNeedsNoUnwinding) {
  std::jthread killer([&] {
    wait_for_processes();
    kill_command();
  });
  expect_error([&] { score_by_command(writing_to(pids_, "sleep 1000"), "m", {}); }, {"status 137"});
  kill_command();  // nothing runs: nothing happens
}

TEST(ShareOfFloatScore, IsOneForEqualScoresAndLessForWorseOnes) {
  for (const double score : {0.01, 0.7, 250.0, -0.01, -0.7, -250.0}) {
    EXPECT_DOUBLE_EQ(share_of_float_score(score, score), 1);
    const double worse = score - std::abs(score) / 10;
    const double better = score + std::abs(score) / 10;
    EXPECT_NEAR(share_of_float_score(worse, score), 0.9, 1e-12) << score;
    EXPECT_NEAR(share_of_float_score(better, score), 1.1, 1e-12) << score;
  }
  EXPECT_DOUBLE_EQ(share_of_float_score(-0.2, -0.1), 0) << "a loss that has doubled is no share of 2";
  EXPECT_LT(share_of_float_score(-1, 0.5), 0);
}

TEST(ShareOfFloatScore, RefusesAFloatScoreOfWhichThereIsNone) {
  for (const double score : {0.0, -0.0, std::nan(""), HUGE_VAL})
    expect_error([&] { share_of_float_score(0.5, score); }, {"float model's score"});
}

}  // namespace
}  // namespace detent::run
