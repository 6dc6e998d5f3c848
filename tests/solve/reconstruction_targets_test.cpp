#include "solve/layers/input_form.h"

#include <gtest/gtest.h>

#include "solve/algebra/gram.h"
#include "solve/layers/solver.h"
#include "solve/support.h"

namespace detent::solve {
namespace {

TEST(OwnTargets, AreTheOutputsOfTheFloatWeightsForEveryKindOfLayer) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 1, 8, 3);
    for (const bool with_bias : {false, true}) {
      const auto bias = with_bias ? normal(layer.weights.rows, 5) : std::vector<float>();
      const auto expected = naive_forward(c.geometry, c.input, layer.inputs[0], layer.weights.values);
      const auto found = symmetric_targets(layer.weights, c.geometry, bias, c.input, layer.inputs[0], kernels(), 1);
      EXPECT_EQ(found, symmetric_targets(layer.weights, c.geometry, bias, c.input, layer.inputs[0], kernels(), 3));
      ASSERT_EQ(found.size(), expected.size());
      const Shape out = c.geometry.output_shape(c.input);
      std::size_t step = 1;
      for (std::size_t a = 2; a < out.size() && c.geometry.kind != LayerKind::product; ++a) {
        step *= static_cast<std::size_t>(out[a]);
      }
      for (std::size_t i = 0; i < found.size(); ++i) {
        const double b = with_bias ? bias[i / step % layer.weights.rows] : 0;
        ASSERT_NEAR(found[i], expected[i] + b, 1e-4) << i;
      }
    }
  }
}

/// Sums over a layer's inputs and these targets.
GramForm sums_of(const Layer& layer, const std::vector<std::vector<float>>& targets) {
  GramAccumulator sums(layer.geometry, kernels(), 1);
  for (std::size_t i = 0; i < targets.size(); ++i) sums.add(layer.shape, layer.inputs[i], targets[i]);
  return sums.take();
}

// Sums are those over samples whose targets were replaced one by one, for any share.
TEST(OwnTargets, OfFormsAreThoseOfTheirSamples) {
  const Layer layer = make_layer(convolution(6, 4, 2, {3, 3}), {1, 6, 7, 6}, 3, 4, 2);
  for (const float share : {0.0F, 0.25F}) {
    std::vector<std::vector<float>> targets = layer.targets;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const auto own =
          symmetric_targets(layer.weights, layer.geometry, layer.bias, layer.shape, layer.inputs[i], kernels(), 1);
      for (std::size_t j = 0; j < own.size(); ++j) targets[i][j] = own[j] + share * (targets[i][j] - own[j]);
    }
    const GramForm expected = sums_of(layer, targets);
    GramFormOrRawInputs any = sums_of(layer, layer.targets);
    set_targets(any, layer.weights, layer.bias, {share, false}, kernels(), 2);
    const auto& form = std::get<GramForm>(any);
    EXPECT_EQ(form.symmetric, share == 0);
    for (std::size_t i = 0; i < form.cross.size(); ++i) ASSERT_NEAR(form.cross[i], expected.cross[i], 2e-3) << i;
    for (std::size_t m = 0; m < form.target_sum.size(); ++m) {
      EXPECT_NEAR(form.target_sum[m], expected.target_sum[m], 2e-3);
      EXPECT_NEAR(form.target_norm[m], expected.target_norm[m], 1e-4 * expected.target_norm[m]);
    }
  }
}

// The float weights are the best there are, and the best bias for them brings the outputs to the targets' mean.
TEST(OwnTargets, KeepTheMeanOfTheTargetsWhereTheBiasIsSolvedFor) {
  const Layer layer = make_layer(product(300, 5), {40, 300}, 2, 8, 4);
  FinetuneConfig config;
  config.rounding = WeightSolver::gptq;
  config.update_bias = true;
  FormAccumulator positions(layer.geometry, kernels(), 1, config, layer.inputs.size());
  for (std::size_t i = 0; i < layer.inputs.size(); ++i) positions.add(layer.shape, layer.inputs[i], layer.targets[i]);
  const GramForm before = sums_of(layer, layer.targets);
  GramFormOrRawInputs forms[] = {before, positions.take()};
  ASSERT_TRUE(std::holds_alternative<RawInputs>(forms[1]));
  for (GramFormOrRawInputs& form : forms) {
    set_targets(form, layer.weights, layer.bias, {0, true}, kernels(), 1);
    const Solution solution = solve(layer.weights, form, layer.bias, config, kernels(), {});
    const auto bias = best_bias(layer.weights, before, solution.integers);
    for (std::size_t m = 0; m < bias.size(); ++m) EXPECT_NEAR(solution.bias[m], bias[m], 1e-3);
  }
}

// So the sums that only errors follow from need not be made.
TEST(OwnTargets, DoNotMatterToGptqWhereTheyAreAllThatItAimsAt) {
  FinetuneConfig config;
  config.rounding = WeightSolver::gptq;
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 4, 4, 3);
    const auto solved = [&](bool integers_only) {
      GramFormOrRawInputs form = sums_of(layer, layer.targets);
      set_targets(form, layer.weights, layer.bias, {0, false, integers_only}, kernels(), 1);
      return solve(layer.weights, form, layer.bias, config, kernels(), {}).integers;
    };
    EXPECT_EQ(solved(true), solved(false));
    EXPECT_NE(solved(true), nearest(layer.weights, {}).integers);
  }
}

TEST(OwnTargets, GiveWayToTheFloatModelsWherePositionsAreMany) {
  EXPECT_EQ(asymmetric_share(0.1), 0.0F);
  EXPECT_EQ(asymmetric_share(24), 0.0F);
  EXPECT_GT(asymmetric_share(25), 0.1F);
  EXPECT_FLOAT_EQ(asymmetric_share(128), 0.5F);
  EXPECT_FLOAT_EQ(asymmetric_share(64, 16), 0.5F);
  EXPECT_EQ(asymmetric_share(24, 16), 0.0F);
  EXPECT_GT(asymmetric_share(6400), 0.98F);
  EXPECT_DOUBLE_EQ(damping_for(0.01, 0.1), 0.1);
  EXPECT_DOUBLE_EQ(damping_for(0.01, 64), 0.02);
  EXPECT_NEAR(damping_for(0.01, 6400), 0.01, 2e-4);
  EXPECT_DOUBLE_EQ(positions_per_weight(convolution(8, 4, 2, {3}), {2, 8, 12}, 6), 10.0);
}

}  // namespace
}  // namespace detent::solve
