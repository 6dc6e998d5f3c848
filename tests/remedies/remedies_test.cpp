#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "calibration/methods.h"
#include "mpi/peer.h"
#include "remedies/equalization.h"
#include "remedies/fallback.h"
#include "remedies/remedies.h"
#include "remedies/trial_model.h"
#include "remedies/trials.h"
#include "support.h"

namespace detent::remedies {
namespace {

using namespace test;  // NOLINT: the makers of small models

constexpr std::int64_t kWidth = 16;

// x · gains → MatMul: one scale has to serve channels as different as the gains.
Model uneven(const Floats& gains) {
  const auto count = static_cast<std::size_t>(kWidth);
  auto weights = normal(count * count, 7);
  for (std::size_t c = 0; c < count; ++c) {
    for (std::size_t m = 0; m < count; ++m) weights[c * count + m] /= gains[c];
  }
  return make_model({Node("Mul", "scale", {"x", "gains"}, {"a"}), Node("MatMul", "product", {"a", "w"}, {"y"})},
                    {floats("gains", {kWidth}, gains), floats("w", {kWidth, kWidth}, weights)}, 17,
                    {value("x", {32, kWidth})}, {value("y", {32, kWidth})});
}

const std::vector<std::int64_t> kShape{32, kWidth};

TEST(Equalization, HelpsWhereChannelsDiffer) {
  Floats gains(kWidth, 1);
  gains[3] = 60;
  Bench bench(uneven(gains), kShape, {{"a", {-200, 200}}});
  const double before = bench.error();
  ASSERT_TRUE(bench.apply(*equalization()));
  EXPECT_LT(bench.error(), 0.1 * before);
  ASSERT_EQ(bench.draft.result.equalized.size(), 1U);
  EXPECT_EQ(bench.draft.result.equalized[0].value, "a");
  EXPECT_LT(bench.draft.result.equalized[0].error_after, 0.5 * bench.draft.result.equalized[0].error_before);
}

TEST(Equalization, LeavesEvenChannelsAlone) {
  Bench bench(uneven(Floats(kWidth, 1)), kShape, {{"a", {-4, 4}}});
  const auto nodes = bench.draft.prepared.model.graph.nodes.size();
  EXPECT_FALSE(bench.apply(*equalization()));
  EXPECT_EQ(bench.draft.prepared.model.graph.nodes.size(), nodes);
  EXPECT_TRUE(bench.draft.result.equalized.empty());
}

// Two gates behind convolutions, the sum of what they let through, and a convolution that reads it.
Model gated() {
  const auto weight = [](const std::string& name, unsigned seed) {
    return floats(name, {4, 4, 3, 3}, normal(144, seed, 0.2F));
  };
  return make_model({Node("Conv", "first", {"x", "w1"}, {"a"}, {Attribute::of_ints("pads", {1, 1, 1, 1})}),
                     Node("Sigmoid", "", {"a"}, {"gate_a"}), Node("Mul", "", {"a", "gate_a"}, {"m"}),
                     Node("Conv", "second", {"m", "w2"}, {"b"}, {Attribute::of_ints("pads", {1, 1, 1, 1})}),
                     Node("HardSigmoid", "", {"b"}, {"gate_b"}), Node("Mul", "", {"b", "gate_b"}, {"n"}),
                     Node("Add", "", {"m", "n"}, {"r"}), Node("Conv", "third", {"r", "w3"}, {"y"})},
                    {weight("w1", 1), weight("w2", 2), weight("w3", 3)}, 17, {value("x", {1, 4, 8, 8})},
                    {value("y", {1, 4, 6, 6})});
}
calibration::Ranges gate_ranges(calibration::Range of_n) {
  return {{"x", {-40, 40}}, {"a", {-5, 5}}, {"m", {-1, 5}}, {"b", {-5, 5}},
          {"r", {-2, 5}},   {"y", {-5, 5}}, {"n", of_n}};
}

TEST(Gates, GoToIntegersWhereTheResultsAllowIt) {
  Bench bench(gated(), {1, 4, 8, 8}, gate_ranges({-1, 4}));
  EXPECT_EQ(bench.draft.assignment.placement.find("n"), nullptr);
  ASSERT_TRUE(bench.apply(*gates()));
  EXPECT_EQ(bench.draft.prepared.integer_gates, (quantization::GateNames{"gate_a", "gate_b"}));
  EXPECT_FALSE(bench.draft.assignment.placement.find("m")->float_readers_unrounded);
}

TEST(Gates, ThatMayAllGoAreNotMeasuredInGroups) {
  QuantizeOptions options;
  std::size_t runs = 0;
  options.progress = [&](const std::string&, std::uint64_t, std::uint64_t) { ++runs; };
  Bench bench(gated(), {1, 4, 8, 8}, gate_ranges({-1, 4}), options);
  ASSERT_TRUE(bench.apply(*gates()));
  EXPECT_EQ(runs, 3 * bench.evaluator->judging_samples().count);  // the float model, and two assignments
}

TEST(Gates, ThatDoHarmStayInFloat) {
  Bench bench(gated(), {1, 4, 8, 8}, gate_ranges({-500, 500}));
  ASSERT_TRUE(bench.apply(*gates()));
  EXPECT_EQ(bench.draft.prepared.integer_gates, (quantization::GateNames{"gate_a"}));
  EXPECT_EQ(bench.draft.assignment.placement.find("n"), nullptr);
}

TEST(RangeChoice, TakesTheRangeThatDoesLeastHarmAndSaysWhose) {
  Bench bench(uneven(Floats(kWidth, 1)), kShape, {{"a", {-60, 60}}});
  bench.draft.proposals.others = {{CalibrationMethod::minmax, {{"a", {{-4, 4}, "minmax"}}}},
                                  {CalibrationMethod::percentile, {{"a", {{-0.5F, 0.5F}, "percentile"}}}}};
  bench.draft.sensitivities = bench.evaluator->measure(bench.draft);
  const double before = bench.error();
  ASSERT_TRUE(bench.apply(*range_choice()));
  EXPECT_LT(bench.error(), 0.05 * before);
  EXPECT_EQ(bench.draft.assignment.values.at("a").origin, "minmax");
  ASSERT_EQ(bench.draft.result.methods.size(), 1U);
  EXPECT_EQ(bench.draft.result.methods[0].method, "minmax");
}

TEST(RangeChoice, KeepsARangeThatNoOtherBeats) {
  Bench bench(uneven(Floats(kWidth, 1)), kShape, {{"a", {-4, 4}}});
  bench.draft.proposals.others = {{CalibrationMethod::minmax, {{"a", {{-60, 60}, "minmax"}}}}};
  bench.draft.sensitivities = bench.evaluator->measure(bench.draft);
  EXPECT_FALSE(bench.apply(*range_choice()));
  EXPECT_EQ(bench.draft.assignment.values.at("a").origin, "mse");
}

// A small product whose input has a useless range, then a large one that is fine.
Model small_then_large() {
  const auto count = static_cast<std::size_t>(kWidth);
  return make_model({Node("Erf", "e", {"x"}, {"a"}), Node("MatMul", "small", {"a", "w"}, {"b"}),
                     Node("Erf", "f", {"b"}, {"c"}), Node("MatMul", "large", {"c", "v"}, {"y"})},
                    {floats("w", {kWidth, kWidth}, normal(count * count, 7, 0.2F)),
                     floats("v", {kWidth, 40 * kWidth}, normal(40 * count * count, 8, 0.2F))},
                    17, {value("x", {32, kWidth})}, {value("y", {32, 40 * kWidth})});
}

TEST(Fallback, LeavesInFloatWhatMakesMostOfTheErrorForFewMultiplications) {
  Bench bench(small_then_large(), kShape, {{"a", {-200, 200}}, {"c", {-1, 1}}});
  bench.draft.sensitivities = bench.evaluator->measure(bench.draft);
  const double before = bench.error();
  ASSERT_TRUE(bench.apply(*fallback()));
  EXPECT_LT(bench.error(), 0.05 * before);
  ASSERT_EQ(bench.draft.result.float_nodes.size(), 1U);
  EXPECT_NE(bench.draft.result.float_nodes[0].node.find("small"), std::string::npos);
  EXPECT_NEAR(bench.draft.result.float_nodes[0].macs_share, 1.0 / 41, 1e-9);
  EXPECT_FALSE(bench.draft.assignment.values.contains("w"));
  EXPECT_TRUE(bench.draft.assignment.values.contains("v"));
}

TEST(Fallback, GivesSixteenBitsWhereAskedTo) {
  QuantizeOptions options;
  options.accuracy.fallback = AccuracyFallback::int16;
  Bench bench(small_then_large(), kShape, {{"a", {-200, 200}}, {"c", {-1, 1}}}, options);
  bench.draft.proposals.wide = bench.draft.proposals.ranges;
  bench.draft.sensitivities = bench.evaluator->measure(bench.draft);
  const double before = bench.error();
  ASSERT_TRUE(bench.apply(*fallback()));
  EXPECT_LT(bench.error(), 0.05 * before);
  EXPECT_EQ(bench.draft.assignment.values.at("a").type, QuantType::uint16);
  EXPECT_EQ(bench.draft.result.wide_nodes.size(), 1U);
}

TEST(Improve, AppliesWhatIsAskedForAndSaysHowNearTheResultsAre) {
  Floats gains(kWidth, 1);
  gains[3] = 60;
  Bench bench(uneven(gains), kShape, {{"a", {-200, 200}}});
  improve(bench.draft, *bench.evaluator);
  const auto& result = bench.draft.result;
  EXPECT_EQ(result.equalized.size(), 1U);
  EXPECT_FALSE(result.sensitivities.empty());
  EXPECT_GT(result.sqnr_db, 30);
  EXPECT_NEAR(result.sqnr_db, -10 * std::log10(bench.error()), 1e-6);
  EXPECT_EQ(result.integer_macs, 1);
  EXPECT_GE(result.sqnr_db, bench.draft.before_db);
  EXPECT_EQ(result.samples, 8U);

  QuantizeOptions only_tell;
  only_tell.accuracy.sensitivity = SensitivityMode::report;
  Bench told(uneven(gains), kShape, {{"a", {-200, 200}}}, only_tell);
  const auto before = told.draft.assignment.values.at("a").slices.front().scale;
  improve(told.draft, *told.evaluator);
  EXPECT_TRUE(told.draft.result.equalized.empty());
  EXPECT_EQ(told.draft.assignment.values.at("a").slices.front().scale, before);
  EXPECT_LT(told.draft.result.sqnr_db, result.sqnr_db - 10);
}

TEST(Improve, JudgesEveryOutputOfFloatsByItself) {
  const auto weights = normal(static_cast<std::size_t>(kWidth * kWidth), 7, 0.2F);
  auto cast = Node("Cast", "cast", {"b"}, {"fine"});
  cast.set_attribute(onnx::Attribute::of_int("to", static_cast<std::int64_t>(onnx::DataType::float64)));
  Bench bench(make_model({Node("Erf", "e", {"x"}, {"a"}), Node("MatMul", "product", {"a", "w"}, {"b"}), cast,
                          Node("Erf", "f", {"x"}, {"c"}), Node("MatMul", "other", {"c", "v"}, {"bad"})},
                         {floats("w", {kWidth, kWidth}, weights), floats("v", {kWidth, kWidth}, weights)}, 17,
                         {value("x", {32, kWidth})}, {value("fine", {32, kWidth}), value("bad", {32, kWidth})}),
              kShape, {{"a", {-1, 1}}, {"c", {-50, 50}}});
  const auto judged = bench.evaluator->judged(bench.draft);
  ASSERT_EQ(judged.outputs.size(), 2U);
  EXPECT_GT(judged.outputs[0].sqnr_db(), 30);
  EXPECT_LT(judged.outputs[1].sqnr_db(), 20);
  EXPECT_EQ(worst_sqnr_db(judged), judged.outputs[1].sqnr_db());
}

TEST(Errors, OfOnePointAreNotHiddenByAnother) {
  EXPECT_TRUE(is_improved({0.5, 1e-2}, {0.5, 1e-3}));
  EXPECT_FALSE(is_improved({0.5, 1e-2}, {0.1, 2e-2}));   // one gets clearly worse
  EXPECT_TRUE(is_improved({0.5, 1e-6}, {0.1, 1e-5}));    // but is fine even so
  EXPECT_FALSE(is_improved({0.5, 1e-2}, {0.51, 1e-4}));  // the worst must not get worse
  EXPECT_NEAR(mean_error_ratio({0.4, 0.1}, {0.1, 0.1}), 0.5, 1e-12);
}

TEST(Workload, CountsProductsByTheirMultiplications) {
  Bench bench(small_then_large(), kShape, {{"a", {-1, 1}}, {"c", {-1, 1}}});
  const graph::Index index(bench.draft.prepared.model);
  const auto workload = workload_of(bench.draft.prepared, index, bench.evaluator->static_types(bench.draft),
                                    bench.draft.assignment.placement);
  ASSERT_EQ(workload.products.size(), 2U);
  EXPECT_NEAR(workload.products[0].macs, 1.0 / 41, 1e-12);
  EXPECT_NEAR(workload.products[1].macs, 40.0 / 41, 1e-12);
  EXPECT_EQ(workload.others, 0);
}

ChannelExtremes extremes_of(const std::vector<std::vector<float>>& samples) {
  ChannelExtremes extremes;
  for (const auto& sample : samples) {
    extremes.add(sample, std::vector<std::int64_t>{1, static_cast<std::int64_t>(sample.size()), 1}, false);
  }
  return extremes;
}

TEST(ChannelExtremes, HoldAllSamplesAndZero) {
  const auto extremes = extremes_of({{1, -2, 3}, {-4, -1, 5}});
  ASSERT_EQ(extremes.channels(), 3U);
  EXPECT_EQ(extremes.low(0), -4);
  EXPECT_EQ(extremes.high(0), 1);
  EXPECT_EQ(extremes.high(1), 0);
  EXPECT_EQ(extremes.magnitude(2), 5);
  EXPECT_DOUBLE_EQ(extremes.unevenness(), 5 * 3 / 11.0);
}

TEST(ChannelExtremes, AreOfEachChannelHoweverLongItsRows) {
  for (const std::int64_t run : {1, 3, 16, 37}) {
    std::vector<float> values(static_cast<std::size_t>(2 * 3 * run));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3;
    const auto channel = [&](std::size_t i) { return i / static_cast<std::size_t>(run) % 3; };
    ChannelExtremes extremes;
    extremes.add(values, std::vector<std::int64_t>{2, 3, run}, false);
    for (std::size_t c = 0; c < 3; ++c) {
      float low = 0, high = 0;
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (channel(i) != c) continue;
        low = std::min(low, values[i]);
        high = std::max(high, values[i]);
      }
      EXPECT_EQ(extremes.low(c), low) << run;
      EXPECT_EQ(extremes.high(c), high) << run;
    }
  }
}

TEST(ChannelExtremes, HeadroomIsWhatFourTimesAsManyBring) {
  EXPECT_EQ(extremes_of({{2, 8}, {2, 8}, {2, 8}, {2, 8}}).headroom(), 1) << "no more is to come";
  // One half of the samples reaches half as far in each channel: on average √2 from half to all, 2 to four times all.
  EXPECT_NEAR(extremes_of({{2, 4}, {1, 8}}).headroom(), 2 / 1.3, 1e-5);
  EXPECT_EQ(extremes_of({{1, 1}}).headroom(), 4) << "one sample says nothing of others";
  EXPECT_EQ(extremes_of({{0, 0}, {0, 0}}).headroom(), 1);
}

TEST(EqualizingFactors, AreSharesOfTheRangeWhereNoProductReads) {
  graph::ChannelScaling scaling;
  scaling.maker.emplace();
  const onnx::Model model;
  const graph::Index index(model);
  const auto extremes = extremes_of({{4, -1, 0.01F, 20}, {4, -1, 0.01F, 20}});
  const calibration::Range range{-2, 8};
  const auto factors = equalizing_factors(model, index, scaling, extremes, range);
  EXPECT_EQ(factors, (std::vector<float>{0.5F, 0.5F, 1.0F / 16, 1})) << "no less than a sixteenth, no more than all";
  const auto scaled = scaled_range(scaling, extremes, range);
  EXPECT_EQ(scaled.min, -2);
  EXPECT_EQ(scaled.max, 8);
}

constexpr double kAll = std::numeric_limits<double>::infinity();

// A model whose product n has the mark "m<n>" of its own.
quantization::Placement without(std::size_t count, const std::vector<std::size_t>& floats) {
  quantization::Placement placement;
  for (std::size_t n = 0; n < count; ++n) {
    if (std::find(floats.begin(), floats.end(), n) == floats.end())
      placement.marks.push_back({.value = "m" + std::to_string(n), .granularity = {}, .shares = {}});
  }
  return placement;
}

struct Case {
  std::vector<Candidate> candidates;
  MarkErrors errors;
  double whole = 0;

  explicit Case(std::vector<std::pair<double, double>> errors_and_macs) {
    for (std::size_t n = 0; n < errors_and_macs.size(); ++n) {
      errors["m" + std::to_string(n)] = {errors_and_macs[n].first};
      candidates.push_back({n, errors_and_macs[n].second});
      whole += errors_and_macs[n].first;
    }
  }

  std::vector<FallbackChoice> choose(const ChoiceLimits& limits) const {
    return choose_fallbacks(
        candidates, errors, [this](const auto& floats) { return without(candidates.size(), floats); }, limits);
  }
};

TEST(FallbackChoice, PlacesOnlyWhatMayBeTheBest) {
  std::vector<std::pair<double, double>> errors_and_macs;
  for (int n = 0; n < 100; ++n) errors_and_macs.emplace_back(std::pow(0.8, n), 0.01);
  const Case c(errors_and_macs);
  std::size_t placed = 0;
  const auto choices = choose_fallbacks(c.candidates, c.errors,
                                        [&](const auto& floats) {
                                          ++placed;
                                          return without(c.candidates.size(), floats);
                                        },
                                        {.macs = 0.205});
  EXPECT_EQ(choices.size(), 20u);
  EXPECT_LT(placed, 1000u) << "each of 100 in each of 20 steps, and again for second thoughts, would be 8,000";
}

TEST(FallbackChoice, TakesMostErrorForFewestMultiplicationsFirst) {
  const Case c({{0.1, 0.5}, {0.4, 0.1}, {0.3, 0.3}, {0.2, 0.1}});
  const auto choices = c.choose({.macs = kAll});
  ASSERT_EQ(choices.size(), 4u);
  EXPECT_EQ(choices[0].node, 1u);
  EXPECT_EQ(choices[1].node, 3u);
  EXPECT_EQ(choices[2].node, 2u);
  EXPECT_DOUBLE_EQ(choices[0].removed, 0.4);
  EXPECT_EQ(choices[0].macs, 0.1);
}

TEST(FallbackChoice, SmallOnesLeaveRoomForTheWorst) {
  // By gain for each multiplication the first two come first, and the third no longer fits.
  const Case c({{0.2, 0.02}, {0.17, 0.02}, {0.6, 0.08}, {0.1, 0.5}});
  const auto choices = c.choose({.macs = 0.1});
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_EQ(choices[0].node, 2u);
  EXPECT_EQ(choices[1].node, 0u);
}

TEST(FallbackChoice, KeepsToItsLimits) {
  const Case c({{0.1, 0.05}, {0.4, 0.04}, {0.3, 0.3}, {0.2, 0.04}});
  EXPECT_EQ(c.choose({.macs = 0.1}).size(), 2u) << "a third would pass the tenth of the multiplications";
  EXPECT_EQ(c.choose({.macs = kAll, .worth_removing = 0.25}).size(), 2u);
  EXPECT_EQ(c.choose({.macs = kAll, .ratio = 5}).size(), 2u) << "0.4 for 0.04 and 0.2 for 0.04";
  EXPECT_EQ(c.choose({.macs = kAll, .error = 0.45}).size(), 2u) << "0.4 are left then";
  EXPECT_TRUE(c.choose({.macs = 0}).empty());
}

TEST(FallbackChoice, AValueThatTwoProductsReadGoesWithTheSecond) {
  const std::vector<Candidate> candidates{{0, 0.1}, {1, 0.1}};
  const MarkErrors errors{{"shared", PointErrors{0.8}}, {"w0", PointErrors{0.1}}, {"w1", PointErrors{0.1}}};
  const auto place = [](const std::vector<std::size_t>& floats) {
    quantization::Placement placement;
    for (std::size_t n = 0; n < 2; ++n) {
      if (std::find(floats.begin(), floats.end(), n) == floats.end())
        placement.marks.push_back({.value = "w" + std::to_string(n), .granularity = {}, .shares = {}});
    }
    if (floats.size() < 2) placement.marks.push_back({.value = "shared", .granularity = {}, .shares = {}});
    return placement;
  };
  const auto choices = choose_fallbacks(candidates, errors, place, {.macs = kAll});
  ASSERT_EQ(choices.size(), 2u);
  EXPECT_NEAR(choices[0].removed, 0.1, 1e-12);
  EXPECT_NEAR(choices[1].removed, 0.9, 1e-12);
}

// The cheapest set whose error is at most `error`, of all sets.
double cheapest(const Case& c, double error) {
  double best = kAll;
  for (std::uint32_t set = 0; set < 1U << c.candidates.size(); ++set) {
    double left = c.whole, macs = 0;
    for (std::size_t n = 0; n < c.candidates.size(); ++n) {
      if ((set >> n & 1U) == 0) continue;
      left -= c.errors.at("m" + std::to_string(n)).front();
      macs += c.candidates[n].macs;
    }
    if (left <= error) best = std::min(best, macs);
  }
  return best;
}

TEST(FallbackChoice, IsWithinOneCandidateOfTheBestSet) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0.01, 1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::pair<double, double>> pairs;
    for (int n = 0; n < 10; ++n) pairs.emplace_back(uniform(random), uniform(random) / 10);
    const Case c(pairs);
    const double error = 0.3 * c.whole;
    double macs = 0, dearest = 0;
    for (const auto& choice : c.choose({.macs = kAll, .error = error})) {
      macs += choice.macs;
      dearest = std::max(dearest, choice.macs);
    }
    EXPECT_LE(macs - dearest, cheapest(c, error)) << "the classic bound of the greedy knapsack";
  }
}

using quantization::ValueAssignment;

const data::ParallelFor kSerial = [](std::size_t parts, const std::function<void(std::size_t)>& fn) {
  for (std::size_t i = 0; i < parts; ++i) fn(i);
};

TEST(FakeQuantize, RoundsHalfToEvenAndSaturates) {
  const ValueAssignment params{QuantType::uint8, {}, {{0.5F, 10}}, "x", {}, {}};
  std::vector<float> values{0, 0.25F, 0.75F, -0.25F, 0.3F, -1000, 1000, 122.5F};
  fake_quantize(values, std::vector<std::int64_t>{8}, params);
  EXPECT_EQ(values, (std::vector<float>{0, 0, 1, 0, 0.5F, -5, 122.5F, 122.5F}));
}

TEST(FakeQuantize, EachChannelHasItsScale) {
  const ValueAssignment params{
      QuantType::int8, quantization::Granularity::along(1), {{1.0F, 0}, {0.1F, 0}}, "w", {}, {}};
  std::vector<float> values{0.4F, 0.6F, 0.14F, 0.16F, 200, -200, 20, -20};
  fake_quantize(values, std::vector<std::int64_t>{2, 2, 2}, params);
  const std::vector<float> expected{0, 1, 0.1F, 0.2F, 127, -128, 12.7F, -12.8F};
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_FLOAT_EQ(values[i], expected[i]) << i;
}

TEST(Dequantize, OfEachTypeAsStored) {
  const auto stored_as = [](QuantType type, std::vector<std::uint8_t> bytes, std::int32_t zero) {
    std::vector<float> values(3);
    dequantize(values, std::vector<std::int64_t>{3}, {type, {}, {{0.5F, zero}}, "w", {}, {}},
               std::as_bytes(std::span<const std::uint8_t>(bytes)));
    return values;
  };
  EXPECT_EQ(stored_as(QuantType::int8, {0x80, 0xff, 0x7f}, 0), (std::vector<float>{-64, -0.5F, 63.5F}));
  EXPECT_EQ(stored_as(QuantType::uint8, {0, 0xff, 0x80}, 128), (std::vector<float>{-64, 63.5F, 0}));
  EXPECT_EQ(stored_as(QuantType::int16, {0, 0x80, 1, 0, 0xff, 0xff}, 0), (std::vector<float>{-16384, 0.5F, -0.5F}));
  EXPECT_EQ(stored_as(QuantType::uint16, {0, 0x80, 1, 0, 0xff, 0xff}, 0), (std::vector<float>{16384, 0.5F, 32767.5F}));
  EXPECT_EQ(stored_as(QuantType::int4, {0x78, 0x0f}, 0), (std::vector<float>{-4, 3.5F, -0.5F}));
  EXPECT_EQ(stored_as(QuantType::uint4, {0x78, 0x0f}, 8), (std::vector<float>{0, -0.5F, 3.5F}));
}

TEST(Dequantize, EachChannelHasItsScaleAndZeroPoint) {
  const std::vector<std::uint8_t> stored{1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> values(8);
  dequantize(values, std::vector<std::int64_t>{2, 2, 2},
             {QuantType::uint8, quantization::Granularity::along(1), {{1.0F, 0}, {10.0F, 3}}, "w", {}, {}},
             std::as_bytes(std::span<const std::uint8_t>(stored)));
  EXPECT_EQ(values, (std::vector<float>{1, 2, 0, 10, 5, 6, 40, 50}));
}

float passed(FakeQuantizer& quantizer, std::size_t tap, std::size_t count) {
  std::vector<float> values(count, 0.7F);
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(count)};
  const auto bytes = std::as_writable_bytes(std::span(values));
  quantizer.receive(tap, {onnx::DataType::float32, shape, bytes, bytes}, kSerial);
  for (const float v : values) EXPECT_EQ(v, values.front());
  return values.front();
}

TEST(FakeQuantizer, RoundsOnlyWhatIsSwitchedOn) {
  const auto roundings = roundings_of({{"a", {QuantType::uint8, {}, {{1.0F, 0}}, "a", {}, {}}},
                                       {"b", {QuantType::uint8, {}, {{1.0F, 0}}, "b", {}, {}}}});
  FakeQuantizer quantizer;
  quantizer.expect({"a", "", "b"});
  EXPECT_EQ(passed(quantizer, 0, 5), 0.7F);
  const Trial first{{"a", &roundings.at("a")}, {"unknown", &roundings.at("b")}};
  quantizer.set_trial(&first);
  EXPECT_EQ(passed(quantizer, 0, 5), 1.0F);
  EXPECT_EQ(passed(quantizer, 0, 200'001), 1.0F) << "in several pieces";
  EXPECT_EQ(passed(quantizer, 1, 5), 0.7F);
  EXPECT_EQ(passed(quantizer, 2, 5), 0.7F);
  const Trial second{{"b", &roundings.at("b")}};
  quantizer.set_trial(&second);
  EXPECT_EQ(passed(quantizer, 0, 5), 0.7F);
  EXPECT_EQ(passed(quantizer, 2, 5), 1.0F);
  quantizer.set_trial(nullptr);
  EXPECT_EQ(passed(quantizer, 2, 5), 0.7F);
}

TEST(FakeQuantize, BlocksAlongAnyAxisHaveScalesOfTheirOwn) {
  // Three rows in blocks of two along axis 0: rows 0 and 1 of a column share a scale, row 2 has its own.
  std::vector<float> values{1.4F, 1.4F, 1.4F, 1.4F, 1.4F, 1.4F};
  const ValueAssignment columns{
      QuantType::int8, quantization::Granularity::blocks(0, 2), {{1, 0}, {0.5F, 0}, {0.1F, 0}, {0.2F, 0}}, "w", {}, {}};
  fake_quantize(values, std::vector<std::int64_t>{3, 2}, columns);
  EXPECT_EQ(values, (std::vector<float>{1, 1.5F, 1, 1.5F, 14 * 0.1F, 7 * 0.2F}));
  std::vector<float> last{1.4F, 1.4F, 1.4F, 1.4F, 1.4F, 1.4F};
  const ValueAssignment rows{
      QuantType::int8, quantization::Granularity::blocks(1, 2), {{1, 0}, {0.5F, 0}, {0.1F, 0}, {0.2F, 0}}, "w", {}, {}};
  fake_quantize(last, std::vector<std::int64_t>{2, 3}, rows);
  EXPECT_EQ(last, (std::vector<float>{1, 1, 1.5F, 14 * 0.1F, 14 * 0.1F, 7 * 0.2F}));
}

TEST(FakeQuantizer, MultipliesChannelsBeforeTheyAreRounded) {
  Rounding rounding{{QuantType::uint8, {}, {{1.0F, 128}}, "a", {}, {}}, {1, 0.5F, 4}, 1};
  FakeQuantizer quantizer;
  quantizer.expect({"a"});
  const Trial trial{{"a", &rounding}};
  quantizer.set_trial(&trial);
  const std::vector<float> given{1.2F, -3.4F, 5, 7, 0.3F, 0.1F};
  const auto rounded = [&](std::vector<std::int64_t> shape) {
    std::vector<float> values = given;
    const auto bytes = std::as_writable_bytes(std::span(values));
    quantizer.receive(0, {onnx::DataType::float32, shape, bytes, bytes}, kSerial);
    return values;
  };
  // By hand: channels of two elements, x · f rounded, over f.
  EXPECT_EQ(rounded({1, 3, 2}), (std::vector<float>{1, -3, 4, 8, 0.25F, 0}));
  rounding.factor_axis = -1;
  EXPECT_EQ(rounded({2, 3}), (std::vector<float>{1, -4, 5, 7, 0, 0}));
}

TEST(FakeQuantizer, ConstantsAreRoundedAlikeInEveryRun) {
  using quantization::Granularity;
  const std::vector<std::int64_t> shape{4, 3, 6};
  std::vector<float> given(72);
  for (std::size_t i = 0; i < given.size(); ++i) given[i] = static_cast<float>((i * 37) % 72) * 0.71F - 22;
  const auto slices = [](std::size_t count, std::int32_t zero) {
    std::vector<quantization::ScaleZeroPoint> all;
    for (std::size_t s = 0; s < count; ++s)
      all.push_back({0.3F + 0.11F * static_cast<float>(s), zero + static_cast<std::int32_t>(s)});
    return all;
  };
  const std::pair<Granularity, std::size_t> layouts[] = {{{}, 1},
                                                         {Granularity::along(0), 4},
                                                         {Granularity::along(1), 3},
                                                         {Granularity::along(2), 6},
                                                         {Granularity::blocks(2, 4), 24},
                                                         {Granularity::blocks(0, 2), 36}};
  const std::pair<QuantType, std::int32_t> types[] = {
      {QuantType::int8, -3}, {QuantType::uint8, 100},    {QuantType::int4, -2},       {QuantType::uint4, 5},
      {QuantType::int16, 7}, {QuantType::uint16, 30000}, {QuantType::float8e4m3fn, 0}};
  for (const auto& [type, zero] : types) {
    for (const auto& [granularity, count] : layouts) {
      auto params = ValueAssignment{type, granularity, slices(count, zero), "w", {}, {}};
      if (is_float(type)) {
        for (auto& p : params.slices) p.zero_point = 0;
      }
      std::vector<float> expected = given;
      fake_quantize(expected, shape, params);
      const Rounding rounding{params};
      const Trial trial{{"w", &rounding}};
      FakeQuantizer quantizer;
      quantizer.expect_constants({"w"});
      quantizer.expect({"w"});
      quantizer.set_trial(&trial);
      for (int run = 0; run < 2; ++run) {
        std::vector<float> values = given;
        const auto bytes = std::as_writable_bytes(std::span(values));
        quantizer.receive(0, {onnx::DataType::float32, shape, bytes, bytes}, kSerial);
        EXPECT_EQ(values, expected) << static_cast<int>(type) << ", run " << run << ", slices " << count;
      }
    }
  }
}

constexpr int kProducts = 12;

// A chain of products with an Erf before each.
Model chain() {
  std::vector<Node> nodes;
  std::vector<onnx::Tensor> weights;
  for (int i = 0; i < kProducts; ++i) {
    const auto n = std::to_string(i);
    const std::string out = i + 1 == kProducts ? "y" : "x" + std::to_string(i + 1);
    nodes.emplace_back("Erf", "erf" + n, std::vector<std::string>{i == 0 ? "x" : "x" + n},
                       std::vector<std::string>{"a" + n});
    nodes.emplace_back("MatMul", "product" + n, std::vector<std::string>{"a" + n, "w" + n},
                       std::vector<std::string>{out});
    weights.push_back(floats("w" + n, {16, 16}, normal(256, static_cast<unsigned>(i), 0.4F)));
  }
  return make_model(nodes, weights, 17, {value("x", {32, 16})}, {value("y", {32, 16})});
}

calibration::Ranges ranges() {
  calibration::Ranges all;
  for (int i = 0; i < kProducts; ++i) {
    all["a" + std::to_string(i)] = {i == 5 ? -40.0F : -1.0F, i == 5 ? 40.0F : 1.0F};
    all["x" + std::to_string(i)] = {-6, 6};
  }
  return all;
}

TEST(Evaluator, JudgesNoMoreSamplesThanTellSomething) {
  Bench bench(chain(), {32, 16}, ranges());
  EXPECT_EQ(bench.evaluator->judging_samples().count, 8U);
  Samples many({32, 16}, 256);
  Evaluator evaluator({.options = bench.options,
                       .model = bench.draft.prepared.model,
                       .runtime = runtime(),
                       .source = many,
                       .profiler = bench.profiler,
                       .directory = bench.directory.path(),
                       .weights = bench.directory.path(),
                       .samples = 256});
  EXPECT_EQ(evaluator.judging_samples().count, 32U);
  EXPECT_EQ(evaluator.judging_samples().skipped, 224U);
}

TEST(NearTrials, SeeWhatAValueDoesWithoutTheRestOfTheModel) {
  Bench bench(chain(), {32, 16}, ranges());
  const auto roundings = roundings_of(bench.draft.assignment.values);
  const std::vector<Trial> trials{{{"a5", &roundings.at("a5")}}, {{"a6", &roundings.at("a6")}}};
  const auto results = bench.evaluator->run_near(bench.draft, bench.draft.assignment.values, trials, {2});
  ASSERT_EQ(results.size(), 2U);
  EXPECT_GT(worst_error_of(results[0]), 100 * worst_error_of(results[1]));
  EXPECT_GT(worst_error_of(results[1]), 0);
}

TEST(NearTrials, ErrorsOfManyValuesAreSharedOutAsTheyAreAlone) {
  Bench bench(chain(), {32, 16}, ranges());
  const auto measured = bench.evaluator->measure(bench.draft);
  ASSERT_FALSE(measured.each_alone);
  EXPECT_EQ(by_error(measured).front().first, "a5");
  const auto roundings = roundings_of(bench.draft.assignment.values);
  const std::vector<Trial> alone{{{"a5", &roundings.at("a5")}}};
  const double error = worst_error_of(
      bench.evaluator->run(bench.draft, bench.draft.assignment.values, alone, {measured.samples}).front());
  EXPECT_NEAR(worst_of(measured.errors.at("a5")) / error, 1, 0.2);
}

TEST(Parts, AreOfAboutTheSameWork) {
  const auto model = chain();
  const auto parts = parts_of(model, exec::infer_value_types(runtime(), model), 4);
  ASSERT_EQ(parts.size(), 5U);
  EXPECT_EQ(parts.front(), 0);
  EXPECT_EQ(parts.back(), 2 * kProducts);
  for (std::size_t i = 1; i < parts.size(); ++i) EXPECT_NEAR(parts[i] - parts[i - 1], 6, 2);
}

TEST(Parts, NoLargeValueCrossesACut) {
  const auto model = chain();
  auto types = exec::infer_value_types(runtime(), model);
  // What crosses there takes 32 MiB a sample.
  const auto& large = model.graph.nodes[11].outputs()[0];
  types[large].shape = std::vector<onnx::Dim>{{1 << 23, ""}};
  for (const int cut : parts_of(model, types, 12)) EXPECT_NE(cut, 12);
}

// Of one trial, as rank 0 sends it: no sums of points and outputs, the logarithm, the number of pairs.
std::string result(double log_errors) {
  std::string bytes(32, '\0');
  std::memcpy(bytes.data() + 16, &log_errors, sizeof log_errors);
  return bytes;
}

std::vector<TrialResult> shared(const std::string& theirs) {
  auto ranks = detent::test::beside_peer(0, {theirs});
  const std::vector<Trial> trials(2);
  return share_trials(&ranks, trials, {}, [](std::span<const Trial> mine) {
    std::vector<TrialResult> results(mine.size());
    results.at(0).log_errors = 1;
    return results;
  });
}

TEST(SharedTrials, AllGetTheResultsOfAll) {
  const auto all = shared(result(2));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].log_errors, 1);
  EXPECT_EQ(all[1].log_errors, 2);
}

TEST(SharedTrials, ResultsThatBreakOffAreRefused) {
  const std::string endless(8, '\xff');
  for (const auto& theirs : {std::string(), result(2) + result(3), result(2).substr(0, 31), std::string("x"), endless,
                             std::string("\1\0\0\0\0\0\0\0", 8)})
    EXPECT_THROW(shared(theirs), Error) << theirs.size();
}

// The walk-through of docs/extending.md, "A measured remedy": one class behind three verbs is all that it takes.

/// Gives every activation a range that is so many times as wide.
class OtherWidth : public Remedy {
 public:
  explicit OtherWidth(float factor) : factor_(factor) {}

  bool propose(const Draft& draft, Evaluator& evaluator) override {
    proposals_ = draft.proposals;
    for (auto& [value, range] : proposals_.ranges) {
      range.range = {factor_ * range.range.min, factor_ * range.range.max};
      range.origin = "width";
    }
    assignment_ =
        quantization::assign(draft.prepared.model, draft.assignment.placement, proposals_, evaluator.options().config);
    return !proposals_.ranges.empty();
  }

  bool is_better(const Draft& draft, Evaluator& evaluator) override {
    return is_improved(errors_of(evaluator.judged(draft)), errors_of(evaluator.judge(draft, assignment_)));
  }

  void keep(Draft& draft, Evaluator& evaluator) override {
    draft.proposals = std::move(proposals_);
    draft.assignment = std::move(assignment_);
    evaluator.set_judged({});
  }

 private:
  float factor_;
  quantization::Proposals proposals_;
  quantization::Assignment assignment_;
};

Bench with_range(float bound) {
  return {make_model({Node("Erf", "e", {"x"}, {"a"}), Node("MatMul", "product", {"a", "w"}, {"y"})},
                     {floats("w", {16, 16}, normal(256, 7))}, 17, {value("x", {32, 16})}, {value("y", {32, 16})}),
          {32, 16},
          {{"a", {-bound, bound}}}};
}

TEST(WalkThrough, ARemedyIsKeptWhereItHelps) {
  Bench bench = with_range(50);
  const double before = bench.error();
  OtherWidth narrower(0.02F);
  ASSERT_TRUE(bench.apply(narrower));
  EXPECT_LT(bench.error(), 0.05 * before);
  EXPECT_EQ(bench.draft.assignment.values.at("a").origin, "width");
  EXPECT_NEAR(worst_error_of(bench.evaluator->judged(bench.draft)), bench.error(), 1e-12);
}

TEST(WalkThrough, ARemedyThatDoesHarmLeavesNoTrace) {
  Bench bench = with_range(1);
  const double before = bench.error();
  OtherWidth wider(50);
  EXPECT_FALSE(bench.apply(wider));
  EXPECT_EQ(bench.error(), before);
  EXPECT_EQ(bench.draft.assignment.values.at("a").origin, "mse");
}

}  // namespace
}  // namespace detent::remedies
