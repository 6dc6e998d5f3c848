#include "solve/layers/streamed.h"

#include <gtest/gtest.h>

#include <cmath>

#include "solve/support.h"

namespace detent::solve {
namespace {

/// Groups, strides and positions of several samples.
Layer layer_at_4_bits() {
  LayerGeometry g = convolution(8, 6, 2, {3, 3});
  g.strides = {2, 1};
  return make_layer(g, {2, 8, 9, 8}, 4, 4, 7);
}

/// Of each row, sum of (ŷ − y) y over sum of y²; about their means where the bias is free.
std::vector<double> gains(const Layer& layer, const Solution& solution, bool about_means) {
  const auto values = dequantized(layer.weights, solution.integers);
  const std::size_t rows = layer.weights.rows, count = layer.targets[0].size();
  const std::size_t positions = elements(layer.geometry.output_shape(layer.shape)) / 2 / rows;  // samples of two
  std::vector<double> n(rows), sum_d(rows), sum_t(rows), dt(rows), tt(rows);
  for (std::size_t s = 0; s < layer.inputs.size(); ++s) {
    const auto y = naive_forward(layer.geometry, layer.shape, layer.inputs[s], values);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t m = i / positions % rows;
      const double t = layer.targets[s][i] - solution.bias[m], d = y[i] - t;
      n[m] += 1;
      sum_d[m] += d;
      sum_t[m] += t;
      dt[m] += d * t;
      tt[m] += t * t;
    }
  }
  std::vector<double> gains(rows);
  for (std::size_t m = 0; m < rows; ++m) {
    const double means = about_means ? sum_t[m] / n[m] : 0;
    gains[m] = (dt[m] - means * sum_d[m]) / (tt[m] - means * sum_t[m]);
    if (about_means) {
      EXPECT_NEAR(sum_d[m], 0, 1e-3 * std::sqrt(tt[m] * n[m]));
    }
  }
  return gains;
}

TEST(ScaleFit, LeavesNoErrorThatFollowsTheTargets) {
  for (const bool best_bias : {false, true}) {
    const Layer layer = layer_at_4_bits();
    Layer fitted = layer;
    Solution solution = nearest(layer.weights, layer.bias);
    if (best_bias) solution.bias = solve::best_bias(layer.weights, layer.gram(), solution.integers);
    const auto before = gains(layer, solution, best_bias);
    fit_scales(sums_of_outputs_and_targets(layer.weights, layer.gram(), solution, 1), best_bias, fitted.weights,
               solution);
    for (const double gain : before) EXPECT_GT(std::abs(gain), 1e-4);
    for (const double gain : gains(fitted, solution, best_bias)) EXPECT_NEAR(gain, 0, 1e-5);
  }
}

TEST(ScaleFit, IsTheSameOfSumsAndOfSamples) {
  const Layer layer = layer_at_4_bits();
  const Solution solution = nearest(layer.weights, layer.bias);
  InMemory samples(layer);
  const OutputSums a = sums_of_outputs_and_targets(layer.weights, layer.gram(), solution, 3);
  const OutputSums b = sums_of_outputs_and_targets(layer.weights, layer.geometry, solution, samples, kernels(), {});
  ASSERT_EQ(a.positions, b.positions);
  for (std::size_t m = 0; m < layer.weights.rows; ++m) {
    const double scale = a.rows[m].tt;
    EXPECT_NEAR(a.rows[m].tt, b.rows[m].tt, 1e-4 * scale);
    EXPECT_NEAR(a.rows[m].yt, b.rows[m].yt, 1e-4 * scale);
    EXPECT_NEAR(a.rows[m].y, b.rows[m].y, 1e-4 * scale);
    EXPECT_NEAR(a.rows[m].t, b.rows[m].t, 1e-4 * scale);
  }
}

// Rows of a tensor with one scale get one factor; a row of zeros, or one that turns round, keeps what it has.
TEST(ScaleFit, KeepsSharedScalesEqualAndBearsDeadRows) {
  Layer layer = layer_at_4_bits();
  layer.weights.scale_rows = 1;
  layer.weights.scale.assign(layer.weights.rows, layer.weights.scale[0]);
  Solution solution = nearest(layer.weights, layer.bias);
  QuantizedWeights fitted = layer.weights;
  fit_scales(sums_of_outputs_and_targets(layer.weights, layer.gram(), solution, 1), false, fitted, solution);
  EXPECT_NE(fitted.scale[0], layer.weights.scale[0]);
  for (const float scale : fitted.scale) EXPECT_EQ(scale, fitted.scale[0]);

  const Layer own = layer_at_4_bits();
  solution = nearest(own.weights, own.bias);
  const std::size_t k = own.weights.fan_in;
  for (std::size_t j = 0; j < k; ++j) {
    solution.integers[j] = own.weights.zero[0];
    solution.integers[k + j] = own.weights.zero[1] - (solution.integers[k + j] - own.weights.zero[1]);
  }
  fitted = own.weights;
  fit_scales(sums_of_outputs_and_targets(own.weights, own.gram(), solution, 1), false, fitted, solution);
  EXPECT_EQ(fitted.scale[0], own.weights.scale[0]);
  EXPECT_EQ(fitted.scale[1], own.weights.scale[1]);
}

}  // namespace
}  // namespace detent::solve
