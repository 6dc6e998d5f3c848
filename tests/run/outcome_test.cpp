#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "data/support.h"
#include "exec/support.h"
#include "run/command.h"
#include "run/comparison/latency.h"
#include "run/comparison/outcome.h"
#include "run/comparison/proof.h"

namespace detent::run {
namespace {

// What is said of a result.

using Answer = Outcome::Answer;

QuantizeResult result(double sqnr_db, double ratio = 0.5) {
  QuantizeResult r;
  r.model_bytes_before = 400;
  r.model_bytes_after = 100;
  r.accuracy.emplace();
  r.accuracy->samples = 16;
  r.accuracy->sqnr_db = sqnr_db;
  r.latency = LatencyChange{};
  r.latency->after.ratio = r.latency->after.cpu_ratio = ratio;
  return r;
}

TEST(Outcome, CloseFastAndSmallIsReady) {
  const auto outcome = outcome_of(result(40));
  EXPECT_EQ(outcome.answer, Answer::yes);
  EXPECT_EQ(outcome.headline,
            "Ready to use: the outputs stay within 1.0 % of the float model's, and it is 2.0 times as fast and 4.0 "
            "times smaller.");
  EXPECT_TRUE(outcome.reasons.empty());
}

TEST(Outcome, TheWorstOutputDecides) {
  EXPECT_EQ(outcome_of(result(20)).answer, Answer::yes);
  EXPECT_EQ(outcome_of(result(19.9)).answer, Answer::look);
  EXPECT_EQ(outcome_of(result(9.9)).answer, Answer::no);
  EXPECT_NE(outcome_of(result(6)).headline.find("the worst output is 50 % off"), std::string::npos);
  EXPECT_EQ(outcome_of(result(std::numeric_limits<double>::infinity())).answer, Answer::yes);
}

TEST(Outcome, AnOutputThatIsNotFiniteIsNotExact) {
  const auto outcome = outcome_of(result(-std::numeric_limits<double>::infinity()));
  EXPECT_EQ(outcome.answer, Answer::no);
  EXPECT_EQ(outcome.headline.find("Not close to the float model: an output is not finite"), 0);
}

TEST(Outcome, AScoreCountsMoreThanTheOutputs) {
  auto r = result(9);
  r.accuracy->score = 0.995;
  EXPECT_EQ(outcome_of(r).answer, Answer::yes);
  r.accuracy->score = 0.97;
  EXPECT_EQ(outcome_of(r).answer, Answer::look);
  r.accuracy->score = 0.9;
  EXPECT_EQ(outcome_of(r).answer, Answer::no);
}

TEST(Outcome, SamplesThatRepeatOthersAreFew) {
  auto r = result(40);
  r.samples = 16;
  r.repeated_samples = 8;
  EXPECT_EQ(outcome_of(r).answer, Answer::yes);
  r.repeated_samples = 15;
  const auto outcome = outcome_of(r);
  EXPECT_EQ(outcome.answer, Answer::look);
  EXPECT_EQ(outcome.reasons.at(0),
            "15 of the 16 samples repeat others: 8 or more different ones say more about other inputs.");
}

TEST(Outcome, WhatWasNotMeasuredIsSaid) {
  auto r = result(40);
  r.accuracy->samples = 3;
  EXPECT_EQ(outcome_of(r).answer, Answer::look);
  EXPECT_NE(outcome_of(r).reasons.at(0).find("on 3 samples only"), std::string::npos);
  r.accuracy.reset();
  EXPECT_EQ(outcome_of(r).answer, Answer::look);
  EXPECT_EQ(outcome_of(r).headline, "Look at it before you use it: it is 2.0 times as fast and 4.0 times smaller.");
  EXPECT_EQ(outcome_of({}).headline, "Look at it before you use it.");
}

TEST(Outcome, SlowerIsAReasonToLook) {
  const auto outcome = outcome_of(result(40, 1.2));
  EXPECT_EQ(outcome.answer, Answer::look);
  EXPECT_NE(outcome.reasons.at(0).find("It is 1.20x slower"), std::string::npos);
  EXPECT_EQ(outcome_of(result(40, 1.04)).answer, Answer::yes);
  auto busy = result(40, 1.2);  // a busy machine tells nothing of speed
  busy.latency->after.waiting = 0.5;
  EXPECT_EQ(outcome_of(busy).answer, Answer::yes);
  EXPECT_EQ(outcome_of(busy).headline.find("fast"), std::string::npos);
}

TEST(Outcome, NothingQuantizedIsTheHeadline) {
  auto r = result(127, 0.7);
  r.nodes_in_float = 3;
  EXPECT_EQ(outcome_of(r).answer, Answer::look);
  EXPECT_EQ(outcome_of(r).headline, "Nothing was quantized.");
  r.faster_in_float = {"Conv a"};
  EXPECT_NE(outcome_of(r).reasons.at(0).find("--optimize-for size"), std::string::npos);
  r.nodes_quantized = 1;
  EXPECT_EQ(outcome_of(r).answer, Answer::yes);
}

TEST(Outcome, ASizeThatHardlyChangesComesFirst) {
  auto r = result(40, 1.0);
  r.model_bytes_after = 370;
  EXPECT_EQ(outcome_of(r).answer, Answer::look);
  EXPECT_EQ(outcome_of(r).headline.find("The file is hardly smaller (400 B -> 370 B): "), 0U);
  r.faster_in_float = {"Conv a"};
  r.nodes_quantized = 1;
  EXPECT_NE(outcome_of(r).headline.find("--optimize-for size"), std::string::npos);
  r.model_bytes_after = 410;
  EXPECT_EQ(outcome_of(r).headline.find("The file is larger than the float model's (400 B -> 410 B): "), 0U);
  r.latency->after.ratio = r.latency->after.cpu_ratio = 0.5;  // speed is worth something as well
  EXPECT_EQ(outcome_of(r).answer, Answer::yes);
  r.model_bytes_after = 350;
  EXPECT_EQ(outcome_of(r).headline.find("Ready to use"), 0U);
}

TEST(Outcome, KeptNodesHaveTheirReasons) {
  auto r = result(40);
  r.accuracy->float_nodes.push_back({"Conv a", 0.5, 0.1});
  r.accuracy->wide_nodes.push_back({"Conv b", 0.2, 0.1});
  r.faster_in_float = {"Softmax c"};
  const auto kept = kept_nodes(r);
  ASSERT_EQ(kept.size(), 3U);
  EXPECT_EQ(kept[0].node, "Conv a");
  EXPECT_EQ(kept[0].measured->error_share, 0.5);
  EXPECT_EQ(kept[1].why, "16-bit activations, for accuracy");
  EXPECT_EQ(kept[2].measured, nullptr);
}

// What becomes of the times of runs.

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

template <class T>
data::Array array(onnx::DataType type, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  return {type, std::move(shape), std::as_bytes(std::span(values)), nullptr};
}

struct Text {
  std::vector<std::int64_t> ids, mask;
  std::vector<float> x, y;
  std::vector<std::int64_t> shape;  // of the ids
  std::int64_t vocabulary = 2;

  std::optional<NextTokens> judged() const {
    NextTokenSums sums;
    const std::vector<std::int64_t> logits = {shape[0], shape[1], vocabulary};
    const auto marks =
        array(onnx::DataType::int64, {shape[0], static_cast<std::int64_t>(mask.size()) / shape[0]}, mask);
    sums.add(array(onnx::DataType::int64, shape, ids), mask.empty() ? nullptr : &marks,
             array(onnx::DataType::float32, logits, x), array(onnx::DataType::float32, logits, y));
    return sums.result();
  }
};

const float kLn3 = std::log(3.0F);

// Of two tokens, the second has odds of 3 in the float model and 1/3 in the quantized one.
TEST(NextTokenSums, AreThoseOfTheDistributions) {
  const auto told = Text{{0, 1}, {}, {0, kLn3, 9, 9}, {kLn3, 0, 9, 9}, {1, 2}}.judged();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->positions, 1U);
  EXPECT_NEAR(told->float_perplexity, 4.0 / 3, 1e-6);
  EXPECT_NEAR(told->perplexity, 4.0, 1e-6);
  EXPECT_EQ(told->agreement, 0);
  EXPECT_NEAR(told->kl_divergence, 0.75 * std::log(3) - 0.25 * std::log(3), 1e-6);
}

TEST(NextTokenSums, TakeNoStepFromOneRowToTheNext) {
  const std::vector<float> same = {0, kLn3, kLn3, 0, 0, kLn3, 5, 5};
  const auto told = Text{{0, 1, 1, 0}, {}, same, same, {2, 2}}.judged();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->positions, 2U);
  EXPECT_NEAR(told->perplexity, 4 / std::sqrt(3.0), 1e-6);  // 3/4 and 1/4
  EXPECT_EQ(told->agreement, 1);
  EXPECT_EQ(told->kl_divergence, 0);
}

TEST(NextTokenSums, LeavePaddingOut) {
  const std::vector<float> x = {7, 7, 0, kLn3, 7, 7};
  // Padding is before the text; the mask has a column more, of the cache.
  const auto told = Text{{1, 0, 1}, {1, 0, 1, 1}, x, x, {1, 3}}.judged();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->positions, 1U);
  EXPECT_NEAR(told->perplexity, 4.0 / 3, 1e-6);
}

TEST(NextTokenSums, KnowTokensThatAreRuledOut) {
  const float never = -std::numeric_limits<float>::infinity();
  const auto told = Text{{0, 1}, {}, {never, 0, 0, 0}, {never, 0, 0, 0}, {1, 2}}.judged();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->perplexity, 1);
  EXPECT_EQ(told->kl_divergence, 0);
}

TEST(NextTokenSums, RefuseTokensOfAnotherVocabulary) {
  EXPECT_THROW((Text{{0, 2}, {}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 2}}.judged()), Error);
  EXPECT_THROW((Text{{0, -1}, {}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 2}}.judged()), Error);
}

TEST(NextTokenSums, AreNotThereForOneToken) { EXPECT_FALSE((Text{{1}, {}, {0, 0}, {0, 0}, {1, 1}}.judged())); }

TEST(FindTokens, KnowsDecodersWithACache) {
  const auto input = [](std::string name) { return data::InputSpec{std::move(name), onnx::DataType::int64, {}}; };
  const std::vector<data::InputSpec> decoder = {input("attention_mask"), input("input_ids"),
                                                input("past_key_values.0.key")};
  const auto places = find_tokens(decoder, {"present.0.key", "logits"});
  ASSERT_TRUE(places);
  EXPECT_EQ(places->ids, 1U);
  EXPECT_EQ(places->mask, 0U);
  EXPECT_EQ(places->logits, 1U);
  EXPECT_FALSE(find_tokens(decoder, {"last_hidden_state"}));
  EXPECT_FALSE(find_tokens({input("attention_mask"), input("input_ids")}, {"logits"}));
}

// A user's command: what it prints, how it is ended, and what its scores are worth.

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
