#include "solve/algebra/gram.h"

#include <gtest/gtest.h>

#include "base/error.h"

#include "solve/support.h"

namespace detent::solve {
namespace {

// The positions of a layer, found without Patches: the forward pass of weights that are 1 at one place picks a patch
// row.
std::vector<std::vector<double>> naive_inputs(const Case& c, const std::vector<float>& input) {
  const auto fan_in = static_cast<std::size_t>(c.geometry.fan_in());
  const auto group_rows = static_cast<std::size_t>(c.geometry.outputs / c.geometry.groups);
  const Shape out = c.geometry.output_shape(c.input);
  const bool product = c.geometry.kind == LayerKind::product;
  const std::size_t outputs = static_cast<std::size_t>(c.geometry.outputs);
  const std::size_t positions = product ? 1 : elements(out) / static_cast<std::size_t>(out[0]) / outputs;
  std::vector<std::vector<double>> rows;
  for (std::size_t group = 0; group < static_cast<std::size_t>(c.geometry.groups); ++group) {
    for (std::size_t k = 0; k < fan_in; ++k) {
      const std::size_t m = group * group_rows;
      std::vector<float> pick(outputs * fan_in, 0.0F);
      pick[m * fan_in + k] = 1;
      const auto y = naive_forward(c.geometry, c.input, input, pick);
      std::vector<double> row;
      for (std::size_t i = 0; i < y.size(); ++i) {
        if (i / positions % outputs == m) row.push_back(y[i]);
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

std::vector<std::vector<double>> target_rows(const Case& c, const std::vector<float>& target) {
  const Shape out = c.geometry.output_shape(c.input);
  const std::size_t outputs = static_cast<std::size_t>(c.geometry.outputs);
  const bool product = c.geometry.kind == LayerKind::product;
  const std::size_t positions = product ? 1 : elements(out) / static_cast<std::size_t>(out[0]) / outputs;
  std::vector<std::vector<double>> rows(outputs);
  for (std::size_t i = 0; i < target.size(); ++i) rows[i / positions % outputs].push_back(target[i]);
  return rows;
}

double inner(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

TEST(Patches, PickWhatEachWeightIsMultipliedWith) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const auto input = normal(elements(c.input), 3);
    const Patches patches(c.geometry, c.input);
    const auto expected = naive_inputs(c, input);
    ASSERT_EQ(patches.rows(), expected.size());
    ASSERT_EQ(patches.positions(), expected[0].size());
    Tile tile(patches.rows(), patches.positions() + 3, c.geometry.kind == LayerKind::product);
    const std::size_t cut = patches.positions() / 2 + 1;  // in two pieces that end anywhere
    patches.gather(input.data(), {0, patches.rows()}, {0, cut}, tile, 2);
    patches.gather(input.data(), {0, patches.rows()}, {cut, patches.positions()}, tile, 2 + cut);
    for (std::size_t r = 0; r < patches.rows(); ++r) {
      for (std::size_t t = 0; t < patches.positions(); ++t)
        ASSERT_EQ(*tile.at(r, t + 2), expected[r][t]) << r << " " << t;
    }
  }
}

TEST(Gram, IsTheSumOverAllPositionsForEveryKindOfLayer) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const auto input = normal(elements(c.input), 3);
    const auto target = normal(elements(c.geometry.output_shape(c.input)), 4);
    GramAccumulator sums(c.geometry, kernels(), 2);
    sums.add(c.input, input, target);
    sums.add(c.input, input, target);
    const GramForm form = sums.take();
    const auto x = naive_inputs(c, input);
    const auto y = target_rows(c, target);
    const auto k = static_cast<std::size_t>(c.geometry.fan_in());
    const std::size_t group_rows = y.size() / form.groups;
    EXPECT_EQ(form.positions, 2 * x[0].size());
    for (std::size_t r = 0; r < x.size(); ++r) {
      EXPECT_NEAR(form.input_sum[r], 2 * std::accumulate(x[r].begin(), x[r].end(), 0.0), 1e-5);
      for (std::size_t j = 0; j < k; ++j) {
        const double expected = 2 * inner(x[r], x[r / k * k + j]);
        ASSERT_NEAR(form.gram[r * k + j], expected, 1e-5 * (1 + std::abs(expected))) << r << " " << j;
      }
    }
    for (std::size_t m = 0; m < y.size(); ++m) {
      EXPECT_NEAR(form.target_sum[m], 2 * std::accumulate(y[m].begin(), y[m].end(), 0.0), 1e-5);
      EXPECT_NEAR(form.target_norm[m], 2 * inner(y[m], y[m]), 1e-5 * form.target_norm[m]);
      for (std::size_t j = 0; j < k; ++j) {
        const double expected = 2 * inner(y[m], x[m / group_rows * k + j]);
        ASSERT_NEAR(form.cross[m * k + j], expected, 1e-5 * (1 + std::abs(expected))) << m << " " << j;
      }
    }
  }
}

TEST(Gram, StaysAccurateOverManySamples) {
  const LayerGeometry g = convolution(8, 8, 1, {3, 3});
  const Shape shape{1, 8, 24, 24};
  GramAccumulator sums(g, kernels(), 2);
  std::vector<double> expected(72 * 72, 0.0);
  Tile tile(72, 22 * 22, false);
  for (unsigned s = 0; s < 60; ++s) {
    auto input = normal(elements(shape), s);
    for (float& v : input) v += 1;
    sums.add(shape, input, normal(8 * 22 * 22, 1000 + s));
    const Patches patches(g, shape);
    patches.gather(input.data(), {0, 72}, {0, patches.positions()}, tile, 0);
    for (std::size_t i = 0; i < 72; ++i)
      for (std::size_t j = 0; j < 72; ++j)
        for (std::size_t t = 0; t < patches.positions(); ++t) {
          expected[i * 72 + j] += static_cast<double>(tile.row(i)[t]) * tile.row(j)[t];
        }
  }
  const GramForm form = sums.take();
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(form.gram[i] - expected[i]) / std::abs(expected[i]));
  }
  EXPECT_LT(worst, 2e-6);
}

TEST(Gram, IsPutTogetherFromManyBlocks) {
  const std::size_t k = 1100, m = 300, rows = 40;  // blocks of 256 rows, 1024 positions
  const auto input = normal(rows * k, 1);
  const auto target = normal(rows * m, 2);
  GramAccumulator sums(product(k, m), kernels(), 2);
  sums.add({rows, k}, input, target);
  const GramForm form = sums.take();
  const auto sum = [&](const std::vector<float>& a, std::size_t width, std::size_t i, std::size_t j) {
    double s = 0;
    for (std::size_t t = 0; t < rows; ++t) s += static_cast<double>(a[t * width + i]) * input[t * k + j];
    return s;
  };
  for (std::size_t i = 0; i < k; i += 7)
    for (std::size_t j = 0; j < k; j += 3)
      ASSERT_NEAR(form.gram[i * k + j], sum(input, k, i, j), 1e-4) << i << " " << j;
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j < k; j += 3)
      ASSERT_NEAR(form.cross[i * k + j], sum(target, m, i, j), 1e-4) << i << " " << j;
}

TEST(Gram, IsTheSameForAnyThreadsAndAnyBatching) {
  const LayerGeometry g = convolution(12, 20, 1, {3, 3});
  const auto sum = [&](std::size_t threads, bool together) {
    GramAccumulator sums(g, kernels(), threads);
    const auto input = normal(6 * 12 * 40 * 40, 1);
    const auto target = normal(6 * 20 * 38 * 38, 2);
    if (together) {
      sums.add({6, 12, 40, 40}, input, target);
    } else {
      for (std::size_t i = 0; i < 6; ++i) {
        sums.add({1, 12, 40, 40}, {input.data() + i * 12 * 1600, 12 * 1600},
                 {target.data() + i * 20 * 1444, 20 * 1444});
      }
    }
    return sums.take();
  };
  const GramForm one = sum(1, true);
  for (const std::size_t threads : {2, 5}) {
    const GramForm other = sum(threads, threads == 2);
    EXPECT_EQ(one.gram, other.gram);
    EXPECT_EQ(one.cross, other.cross);
    EXPECT_EQ(one.input_sum, other.input_sum);
    EXPECT_EQ(one.target_sum, other.target_sum);
    EXPECT_EQ(one.target_norm, other.target_norm);
  }
}

// Where only the float weights' own outputs are aimed at, samples come without targets.
TEST(Gram, SumsInputsAloneWhereThereAreNoTargets) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const auto input = normal(elements(c.input), 3);
    const auto target = normal(elements(c.geometry.output_shape(c.input)), 4);
    GramAccumulator both(c.geometry, kernels(), 1), alone(c.geometry, kernels(), 1);
    both.add(c.input, input, target);
    alone.add(c.input, input, {});
    alone.add(c.input, input, {}, std::vector<std::size_t>{0, 1});
    both.add(c.input, input, target, std::vector<std::size_t>{0, 1});
    const GramForm expected = both.take(), form = alone.take();
    EXPECT_EQ(form.gram, expected.gram);
    EXPECT_EQ(form.input_sum, expected.input_sum);
    EXPECT_EQ(form.positions, expected.positions);
    EXPECT_EQ(form.cross, std::vector<float>(expected.cross.size()));
    EXPECT_EQ(form.target_norm, std::vector<double>(expected.target_norm.size()));
  }
}

TEST(Gram, GivesTheErrorOfASolution) {
  for (const Case& c : all_kinds()) {
    SCOPED_TRACE(c.name);
    const Layer layer = make_layer(c.geometry, c.input, 3, 4, 7);
    const Solution rounded = nearest(layer.weights, layer.bias);
    const double expected = naive_mean(layer, rounded);
    EXPECT_NEAR(mean_squared_output_error(layer.weights, layer.gram(), rounded), expected, 1e-4 * expected);
  }
}

TEST(Gram, RefusesSamplesThatDoNotFit) {
  GramAccumulator sums(product(4, 3), kernels(), 1);
  const std::vector<float> values(8);
  EXPECT_THROW(sums.add({2, 4}, values, values), Error);
  EXPECT_THROW(sums.add({2, 3}, values, values), Error);
}

TEST(Layout, OfModelsAndOfTheMatrixAreInverse) {
  LayerGeometry g = convolution(4, 6, 2, {3});
  g.kind = LayerKind::transposed;
  g.output_padding = {0};
  std::vector<float> model(4 * 3 * 3);  // [C, M / groups, kernel]
  std::iota(model.begin(), model.end(), 0.0F);
  const auto matrix = to_matrix(g, WeightLayout::inputs_first, model);
  // Output 4 is the second of group 1, whose inputs are 2 and 3.
  EXPECT_EQ(matrix[4 * 6 + 0], model[(2 * 3 + 1) * 3]);
  EXPECT_EQ(matrix[4 * 6 + 5], model[(3 * 3 + 1) * 3 + 2]);
  std::vector<std::int32_t> integers(matrix.begin(), matrix.end());
  const auto back = from_matrix(g, WeightLayout::inputs_first, integers);
  EXPECT_TRUE(std::equal(back.begin(), back.end(), model.begin()));

  const LayerGeometry p = product(2, 3);
  EXPECT_EQ(to_matrix(p, WeightLayout::inputs_first, std::vector<float>{1, 2, 3, 4, 5, 6}),
            (std::vector<float>{1, 4, 2, 5, 3, 6}));
  EXPECT_EQ(to_matrix(p, WeightLayout::outputs_first, std::vector<float>{1, 2, 3, 4, 5, 6}),
            (std::vector<float>{1, 2, 3, 4, 5, 6}));
}

}  // namespace
}  // namespace detent::solve
