#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "solve/algebra/gram.h"
#include "solve/algebra/kernels.h"
#include "solve/algebra/reduced_inputs.h"
#include "solve/layers/input_form.h"
#include "solve/layers/solver.h"
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

constexpr std::size_t kPositions = 150, kFanIn = 70, kRows = 5;

/// Positions that are combinations of `rank` ones, each of those weaker than the one before, and some noise.
std::vector<float> inputs_of_rank(std::size_t rank, float noise) {
  const auto parts = normal(rank * kFanIn, 1), shares = normal(kPositions * rank, 2);
  auto positions = normal(kPositions * kFanIn, 3);
  for (float& v : positions) v *= noise;
  for (std::size_t c = 0; c < kPositions; ++c) {
    for (std::size_t r = 0; r < rank; ++r) {
      const float share = shares[c * rank + r] * static_cast<float>(std::pow(0.8, r));
      add_scaled(positions.data() + c * kFanIn, share, parts.data() + r * kFanIn, kFanIn);
    }
  }
  return positions;
}

double power(std::span<const float> values) { return dot_double(values.data(), values.data(), values.size()); }

/// Sum over positions of (w x − y)².
double squares(const std::vector<float>& w, std::span<const float> inputs, const float* targets, std::size_t count) {
  double sum = 0;
  for (std::size_t c = 0; c < count; ++c) {
    const double rest =
        dot_double(w.data(), inputs.data() + c * kFanIn, kFanIn) - (targets == nullptr ? 0 : targets[c]);
    sum += rest * rest;
  }
  return sum;
}

ReducedInputs reduced(const std::vector<float>& positions, const std::vector<float>& targets, double may_lose,
                      std::size_t threads = 1) {
  const InputMatrix given{kPositions, kFanIn, positions};
  return reduce_inputs(given, targets, input_powers(given), may_lose, kernels(), threads);
}

// What is left out is positive: no weights get a larger sum of squares, or one smaller by more than what was lost.
TEST(ReducedInputs, LoseNoMoreThanTheyMay) {
  const auto positions = inputs_of_rank(40, 0.01F);
  const double total = power(positions);
  std::size_t before = kFanIn + 1;
  for (const double share : {1e-4, 1e-3, 1e-2, 0.1}) {
    const ReducedInputs few = reduced(positions, {}, share * total);
    EXPECT_LT(few.count, before);
    before = few.count;
    EXPECT_LE(few.lost, share * total);
    EXPECT_NEAR(power(few.inputs) + few.lost, total, 1e-4 * total);
    for (unsigned seed = 10; seed < 20; ++seed) {
      const auto w = normal(kFanIn, seed);
      const double all = squares(w, positions, nullptr, kPositions), rest = squares(w, few.inputs, nullptr, few.count);
      EXPECT_LE(rest, all * (1 + 1e-4));
      EXPECT_GE(rest, all - few.lost * power(w) - 1e-4 * all);
    }
  }
}

TEST(ReducedInputs, AreAsManyAsSayDifferentThings) {
  EXPECT_EQ(reduced(inputs_of_rank(7, 0), {}, 1e-2).count, 7U);
  EXPECT_EQ(reduced(std::vector<float>(kPositions * kFanIn, 2.0F), {}, 0).count, 1U);
  EXPECT_LE(reduced(inputs_of_rank(40, 1), {}, 0).count, kFanIn);
}

// Differences between weights stay, whatever the targets: the part of these that no weights reach is a constant.
TEST(ReducedInputs, KeepWhatWeightsMakeOfTargets) {
  const auto positions = inputs_of_rank(20, 0);
  const auto targets = normal(kRows * kPositions, 5);
  const ReducedInputs few = reduced(positions, targets, 1e-4);
  ASSERT_EQ(few.targets.size(), kRows * few.count);
  for (std::size_t row = 0; row < kRows; ++row) {
    const float *all_targets = targets.data() + row * kPositions, *few_targets = few.targets.data() + row * few.count;
    const auto a = normal(kFanIn, 30), b = normal(kFanIn, 31);
    const double expected =
        squares(a, positions, all_targets, kPositions) - squares(b, positions, all_targets, kPositions);
    const double found =
        squares(a, few.inputs, few_targets, few.count) - squares(b, few.inputs, few_targets, few.count);
    EXPECT_NEAR(found, expected, 1e-3 * squares(a, positions, all_targets, kPositions));
  }
}

std::vector<float> gram_of(const std::vector<float>& positions) {
  std::vector<float> gram(kFanIn * kFanIn);
  for (std::size_t c = 0; c < kPositions; ++c) {
    const float* x = positions.data() + c * kFanIn;
    for (std::size_t i = 0; i < kFanIn; ++i) add_scaled(gram.data() + i * kFanIn, x[i], x, kFanIn);
  }
  return gram;
}

TEST(InputsOfGram, LoseNoMoreThanTheyMay) {
  const auto positions = inputs_of_rank(40, 0.01F);
  const auto gram = gram_of(positions);
  const double total = power(positions);
  std::size_t before = kFanIn + 1;
  for (const double share : {1e-4, 1e-2, 0.2}) {
    const auto few = inputs_of_gram(gram, kFanIn, share * total, kFanIn);
    ASSERT_TRUE(few);
    EXPECT_LT(few->count, before);
    before = few->count;
    EXPECT_LE(few->lost, share * total);
    EXPECT_NEAR(power(few->inputs) + few->lost, total, 1e-4 * total);
    for (unsigned seed = 10; seed < 20; ++seed) {
      const auto w = normal(kFanIn, seed);
      const double all = squares(w, positions, nullptr, kPositions),
                   rest = squares(w, few->inputs, nullptr, few->count);
      EXPECT_LE(rest, all * (1 + 1e-4));
      EXPECT_GE(rest, all - few->lost * power(w) - 1e-4 * all);
    }
    EXPECT_TRUE(inputs_of_gram(gram, kFanIn, share * total, few->count));
    EXPECT_FALSE(inputs_of_gram(gram, kFanIn, share * total, few->count - 1));
  }
  EXPECT_EQ(inputs_of_gram(std::vector<float>(kFanIn * kFanIn), kFanIn, 0, kFanIn)->inputs, std::vector<float>(kFanIn));
}

TEST(ReducedInputs, OfZerosAreOneOfZeros) {
  const ReducedInputs few = reduced(std::vector<float>(kPositions * kFanIn), normal(kRows * kPositions, 5), 0);
  EXPECT_EQ(few.count, 1U);
  EXPECT_EQ(few.inputs, std::vector<float>(kFanIn));
  EXPECT_EQ(few.targets, std::vector<float>(kRows));
}

TEST(ReducedInputs, AreTheSameForAnyThreads) {
  const auto positions = inputs_of_rank(40, 0.1F);
  const auto targets = normal(kRows * kPositions, 5);
  const ReducedInputs one = reduced(positions, targets, 0.01 * power(positions)),
                      three = reduced(positions, targets, 0.01 * power(positions), 3);
  EXPECT_EQ(one.inputs, three.inputs);
  EXPECT_EQ(one.targets, three.targets);
}

struct Shifted {
  LayerGeometry geometry;
  std::vector<Shape> inputs;
};

/// Kernels of one to three axes; dilation, uneven pads and none, images smaller than the kernel, batches, and images of
/// several sizes in turn.
std::vector<Shifted> layers() {
  std::vector<Shifted> all;
  const auto add = [&](Shape kernel, Shape begin, Shape end, std::vector<Shape> inputs) -> LayerGeometry& {
    LayerGeometry g = convolution(inputs[0][1], 3, 1, std::move(kernel));
    g.pads_begin = std::move(begin);
    g.pads_end = std::move(end);
    all.push_back({std::move(g), std::move(inputs)});
    return all.back().geometry;
  };
  add({3, 3}, {1, 1}, {1, 1}, {{1, 37, 9, 7}, {3, 37, 9, 7}, {1, 37, 5, 12}, {1, 37, 9, 7}});
  add({3, 3}, {0, 0}, {0, 0}, {{2, 32, 6, 5}});
  add({5, 3}, {0, 2}, {3, 1}, {{1, 33, 8, 6}});
  add({3, 3}, {2, 2}, {2, 2}, {{1, 32, 7, 9}}).dilations = {2, 2};
  add({5, 5}, {2, 2}, {2, 2}, {{4, 32, 2, 3}});
  add({7}, {3}, {3}, {{1, 40, 31}, {2, 40, 4}});
  add({3, 2, 2}, {0, 1, 0}, {1, 0, 0}, {{1, 32, 3, 4, 5}});
  return all;
}

GramForm sums_of(const Shifted& layer, bool shifted, std::size_t threads = 1) {
  GramAccumulator sums(layer.geometry, kernels(), threads);
  for (std::size_t i = 0; i < layer.inputs.size(); ++i) {
    const Shape& shape = layer.inputs[i];
    const auto input = normal(elements(shape), static_cast<unsigned>(i));
    std::vector<std::size_t> positions(Patches(layer.geometry, shape).positions());
    std::iota(positions.begin(), positions.end(), std::size_t{0});
    shifted ? sums.add(shape, input, {}) : sums.add(shape, input, {}, positions);
  }
  return sums.take();
}

// Listed positions are gathered and multiplied as they are.
TEST(ShiftedSums, AreThoseOfAllPositions) {
  for (const Shifted& layer : layers()) {
    SCOPED_TRACE(testing::PrintToString(layer.geometry.kernel) + testing::PrintToString(layer.inputs[0]));
    ASSERT_TRUE(ShiftedSums::saves_work(layer.geometry));
    const GramForm expected = sums_of(layer, false), form = sums_of(layer, true);
    EXPECT_EQ(form.positions, expected.positions);
    const double most = *std::max_element(expected.gram.begin(), expected.gram.end());
    ASSERT_GT(most, 1);
    for (std::size_t i = 0; i < form.gram.size(); ++i) ASSERT_NEAR(form.gram[i], expected.gram[i], 1e-5 * most) << i;
    for (std::size_t i = 0; i < form.input_sum.size(); ++i) {
      ASSERT_NEAR(form.input_sum[i], expected.input_sum[i], 1e-4 * std::sqrt(most)) << i;
    }
  }
}

TEST(ShiftedSums, AreTheSameForAnyThreads) {
  for (const Shifted& layer : layers()) EXPECT_EQ(sums_of(layer, true, 1).gram, sums_of(layer, true, 3).gram);
}

TEST(ShiftedSums, AreForDenseKernelsOfStrideOne) {
  LayerGeometry g = convolution(64, 8, 1, {3, 3});
  EXPECT_TRUE(ShiftedSums::saves_work(g));
  g.strides = {1, 2};
  EXPECT_FALSE(ShiftedSums::saves_work(g));
  EXPECT_FALSE(ShiftedSums::saves_work(convolution(64, 64, 2, {3, 3})));
  EXPECT_FALSE(ShiftedSums::saves_work(convolution(64, 8, 1, {1, 1})));
  EXPECT_FALSE(ShiftedSums::saves_work(convolution(16, 8, 1, {3, 3})));
  EXPECT_FALSE(ShiftedSums::saves_work(product(64, 8)));
  g = convolution(64, 8, 1, {3, 3});
  g.kind = LayerKind::transposed;
  EXPECT_FALSE(ShiftedSums::saves_work(g));
}

std::vector<float> positive(std::size_t n, std::size_t rank, unsigned seed) {
  const auto a = normal(n * rank, seed);
  std::vector<float> matrix(n * n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < rank; ++k) sum += static_cast<double>(a[i * rank + k]) * a[j * rank + k];
      matrix[i * n + j] = static_cast<float>(sum);
    }
  return matrix;
}

TEST(Cholesky, FactorsAndSolvesOverSeveralBlocks) {
  for (const std::size_t n : {1, 5, 128, 129, 300}) {
    auto matrix = positive(n, 2 * n, 1);
    const Cholesky factor(matrix, n, kernels(), 2);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j <= i; ++j) {
        double sum = 0;
        for (std::size_t k = 0; k <= j; ++k) sum += static_cast<double>(factor.row(i)[k]) * factor.row(j)[k];
        ASSERT_NEAR(sum, matrix[i * n + j], 2e-4 * static_cast<double>(n)) << n << " " << i << " " << j;
      }
    const auto x = normal(3 * n, 2);
    std::vector<float> b(3 * n);
    for (std::size_t r = 0; r < 3; ++r)
      for (std::size_t j = 0; j < n; ++j) {
        double sum = 0;
        for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(x[r * n + i]) * matrix[i * n + j];
        b[r * n + j] = static_cast<float>(sum);
      }
    factor.solve(b.data(), 3);
    for (std::size_t i = 0; i < b.size(); ++i) ASSERT_NEAR(b[i], x[i], 0.01) << n << " " << i;
  }
}

TEST(Cholesky, BearsSingularMatrices) {
  for (const std::size_t rank : {0, 3, 100}) {
    const Cholesky factor(positive(140, rank, 1), 140, kernels(), 1);
    auto b = normal(140, 2);
    factor.solve(b.data(), 1);
    float largest = 0;
    for (const float v : b) largest = std::max(largest, std::abs(v));
    EXPECT_LT(largest, 1e5F);
  }
}

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
  config.solver = WeightSolver::gptq;
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
  config.solver = WeightSolver::gptq;
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
