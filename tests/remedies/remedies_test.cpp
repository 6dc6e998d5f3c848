#include "remedies/remedies.h"

#include <gtest/gtest.h>

#include <cmath>

#include "calibration/methods.h"
#include "remedies/fallback.h"
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
  const auto workload = workload_of(bench.draft.prepared.model, index, bench.evaluator->static_types(bench.draft),
                                    bench.draft.assignment.placement);
  ASSERT_EQ(workload.products.size(), 2U);
  EXPECT_NEAR(workload.products[0].macs, 1.0 / 41, 1e-12);
  EXPECT_NEAR(workload.products[1].macs, 40.0 / 41, 1e-12);
  EXPECT_EQ(workload.others, 0);
}

}  // namespace
}  // namespace detent::remedies
