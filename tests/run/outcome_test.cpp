// What is said of a result.
#include "run/comparison/outcome.h"

#include <gtest/gtest.h>

#include <limits>

namespace detent::run {
namespace {

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
            "15 of the 16 samples repeat others: 8 or more different ones say more of other inputs.");
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

}  // namespace
}  // namespace detent::run
