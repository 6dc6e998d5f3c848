// Weights whose rows have several scales, one for each block of neighbours, through every solver and form.
#include <gtest/gtest.h>

#include <cmath>

#include "solve/layers/input_form.h"
#include "solve/layers/solver.h"
#include "solve/layers/streamed.h"
#include "solve/support.h"

namespace detent::solve {
namespace {

using quantization::Granularity;

struct Method {
  WeightSolver rounding;
  bool streamed;
};
constexpr Method kMethods[]{{WeightSolver::gptq, false},
                            {WeightSolver::adaround, false},
                            {WeightSolver::adaquant, false},
                            {WeightSolver::adaround, true},
                            {WeightSolver::adaquant, true}};

Solution solved(const Layer& layer, Method method, std::size_t iterations = 300, std::size_t threads = 1) {
  FinetuneConfig config;
  config.rounding = method.rounding;
  config.num_iterations = iterations;
  if (method.rounding == WeightSolver::adaquant) config.learning_rate = 1e-3;
  SolveControl control;
  control.threads = threads;
  if (!method.streamed) return solve(layer.weights, layer.gram(), layer.bias, config, kernels(), control);
  InMemory samples(layer);
  return solve_streamed(layer.weights, layer.geometry, layer.bias, samples, config, kernels(), control);
}

TEST(Blocks, NearestRoundsEachWeightByItsOwnBlock) {
  const Layer layer = make_layer(product(20, 3), {10, 20}, 1, 4, 7);
  const QuantizedWeights w = in_blocks(layer.weights, 8);
  ASSERT_EQ(w.blocks(), 3U);  // the last has four weights
  const auto integers = nearest(w, {}).integers;
  for (std::size_t m = 0; m < 3; ++m) {
    for (std::size_t k = 0; k < 20; ++k) {
      const std::size_t block = m * 3 + k / 8;
      const auto q = std::nearbyint(w.values[m * 20 + k] / w.scale[block]) + static_cast<float>(w.zero[block]);
      EXPECT_EQ(static_cast<float>(integers[m * 20 + k]), std::clamp(q, -8.0F, 7.0F)) << m << ' ' << k;
      EXPECT_NEAR(w.dequantize(m, k, integers[m * 20 + k]), w.values[m * 20 + k], 0.51F * w.scale[block]);
    }
  }
}

// One block of the row's size, and several that have the row's scale, change no integer of any method.
TEST(Blocks, ThatShareAScaleAreAsOne) {
  const Layer layer = make_layer(product(72, 20), {40, 72}, 4, 4, 5);
  for (const Method method : kMethods) {
    const Solution expected = solved(layer, method, 60);
    for (const std::int64_t block : {72, 24, 7}) {
      SCOPED_TRACE(block);
      Layer other = layer;
      QuantizedWeights& w = other.weights;
      w.granularity = Granularity::blocks(1, block);
      w.scale.clear();
      w.zero.clear();
      for (std::size_t m = 0; m < w.rows; ++m) {
        w.scale.insert(w.scale.end(), w.blocks(), layer.weights.scale[m]);
        w.zero.insert(w.zero.end(), w.blocks(), layer.weights.zero[m]);
      }
      const Solution found = solved(other, method, 60);
      EXPECT_EQ(found.integers, expected.integers) << static_cast<int>(method.rounding) << method.streamed;
      EXPECT_EQ(found.bias, expected.bias);
    }
  }
}

/// GPTQ as its paper has it, in double: rounds column after column and spreads each error over those after it.
std::vector<std::int32_t> textbook_gptq(const QuantizedWeights& w, const GramForm& form, double damping) {
  const std::size_t n = w.fan_in;
  std::vector<double> a(form.gram.begin(), form.gram.end());
  double trace = 0;
  for (std::size_t i = 0; i < n; ++i) trace += a[i * n + i];
  for (std::size_t i = 0; i < n; ++i) a[i * n + i] += damping * trace / static_cast<double>(n);
  std::vector<double> inverse(n * n);  // by Gauss and Jordan
  for (std::size_t i = 0; i < n; ++i) inverse[i * n + i] = 1;
  for (std::size_t p = 0; p < n; ++p) {
    const double pivot = a[p * n + p];
    for (std::size_t j = 0; j < n; ++j) {
      a[p * n + j] /= pivot;
      inverse[p * n + j] /= pivot;
    }
    for (std::size_t i = 0; i < n; ++i) {
      const double factor = a[i * n + p];
      if (i == p) continue;
      for (std::size_t j = 0; j < n; ++j) {
        a[i * n + j] -= factor * a[p * n + j];
        inverse[i * n + j] -= factor * inverse[p * n + j];
      }
    }
  }
  std::vector<std::int32_t> integers(w.values.size());
  std::vector<double> rest(inverse);  // of the weights that are not rounded yet
  std::vector<double> values(w.values.begin(), w.values.end());
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t m = 0; m < w.rows; ++m) {
      double* row = values.data() + m * n;
      integers[m * n + j] = w.quantize(m, j, static_cast<float>(row[j]));
      const double error = (row[j] - w.dequantize(m, j, integers[m * n + j])) / rest[j * n + j];
      for (std::size_t k = j + 1; k < n; ++k) row[k] -= error * rest[j * n + k];
    }
    const std::vector<double> line(rest.begin() + static_cast<std::ptrdiff_t>(j * n),
                                   rest.begin() + static_cast<std::ptrdiff_t>((j + 1) * n));
    for (std::size_t i = j + 1; i < n; ++i) {
      for (std::size_t k = j + 1; k < n; ++k) rest[i * n + k] -= line[i] * line[k] / line[j];
    }
  }
  return integers;
}

double sum_of_errors(const QuantizedWeights& weights, const GramForm& form, const Integers& integers) {
  return mean_squared_output_error(weights, form, {integers, {}});
}

TEST(Blocks, GptqIsThatOfItsPaper) {
  for (const std::size_t block : {16, 10}) {
    const Layer layer = make_layer(product(64, 24), {100, 64}, 2, 4, 5);
    const QuantizedWeights w = in_blocks(layer.weights, block);
    GramFormOrRawInputs any = layer.gram();
    set_targets(any, w, {}, {.integers_only = true}, kernels(), 1);
    const GramForm& form = std::get<GramForm>(any);
    FinetuneConfig config;
    config.rounding = WeightSolver::gptq;
    config.activation_order = false;
    const Integers found = gptq(w, form, {}, config, kernels(), {});
    const auto expected = textbook_gptq(w, form, config.damping);
    std::size_t other = 0;  // where sums in float and in double are on two sides of a border
    for (std::size_t i = 0; i < found.size(); ++i) other += found[i] != expected[i] ? 1 : 0;
    EXPECT_LE(other, found.size() / 50);
    GramFormOrRawInputs own = layer.gram();
    set_targets(own, w, {}, {}, kernels(), 1);
    const GramForm& measured = std::get<GramForm>(own);
    const double plain = sum_of_errors(w, measured, nearest(w, {}).integers);
    EXPECT_LT(sum_of_errors(w, measured, found), 0.6 * plain);
    EXPECT_NEAR(sum_of_errors(w, measured, found), sum_of_errors(w, measured, expected), 0.02 * plain);
  }
}

// Every method gains from its iterations as much as on rows with one scale, on data that it has not seen.
TEST(Blocks, EveryMethodBeatsNearestRounding) {
  Layer layer = make_layer(product(64, 48), {64, 64}, 8, 4, 5);
  const Layer whole = layer;
  Layer held_back = make_layer(product(64, 48), {64, 64}, 4, 4, 5, 90000);
  layer.weights = held_back.weights = in_blocks(layer.weights, 16);
  const double plain = naive_mean(held_back, nearest(layer.weights, layer.bias));
  Layer in_rows = held_back;
  in_rows.weights = whole.weights;
  EXPECT_LT(plain, 0.9 * naive_mean(in_rows, nearest(whole.weights, whole.bias)));
  for (const Method method : kMethods) {
    const double share = naive_mean(held_back, solved(layer, method)) / plain;
    std::printf("%d%s: %.2f of nearest\n", static_cast<int>(method.rounding), method.streamed ? " streamed" : "",
                share);
    EXPECT_LT(share, method.rounding == WeightSolver::adaquant ? 0.9 : 0.7) << static_cast<int>(method.rounding);
    EXPECT_EQ(solved(layer, method, 30, 1).integers, solved(layer, method, 30, 3).integers);
  }
}

// Few positions, whose inputs GPTQ works on themselves: in the order of the weights and by their power.
TEST(Blocks, GptqOnInputsTakesThem) {
  const Layer layer = make_layer(product(300, 30), {20, 300}, 6, 4, 5);
  const QuantizedWeights w = in_blocks(layer.weights, 32);
  for (const bool ordered : {false, true}) {
    FinetuneConfig config;
    config.rounding = WeightSolver::gptq;
    config.activation_order = ordered;
    FormAccumulator sums(layer.geometry, kernels(), 1, config, layer.inputs.size());
    for (std::size_t i = 0; i < layer.inputs.size(); ++i) sums.add(layer.shape, layer.inputs[i], layer.targets[i]);
    const GramFormOrRawInputs form = sums.take();
    ASSERT_TRUE(std::holds_alternative<RawInputs>(form));
    const Solution found = solve(w, form, layer.bias, config, kernels(), {});
    const double plain = mean_squared_output_error(w, form, nearest(w, layer.bias), kernels());
    EXPECT_LT(mean_squared_output_error(w, form, found, kernels()), 0.4 * plain);
    const GramForm gram = layer.gram();
    const Solution by_gram = solve(w, gram, layer.bias, config, kernels(), {});
    EXPECT_LT(mean_squared_output_error(w, form, found, kernels()),
              mean_squared_output_error(w, form, by_gram, kernels()) + 0.1 * plain);
  }
}

}  // namespace
}  // namespace detent::solve
