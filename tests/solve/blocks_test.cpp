#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "solve/block_support.h"
#include "solve/blocks/block_error.h"
#include "solve/blocks/block_solver.h"
#include "solve/layers/input_form.h"
#include "solve/layers/solver.h"
#include "solve/layers/streamed.h"
#include "solve/support.h"

namespace detent::solve {
namespace {

// Weights whose rows have several scales, one for each block of neighbours, through every solver and form.

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
  config.solver = method.rounding;
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
    config.solver = WeightSolver::gptq;
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
    config.solver = WeightSolver::gptq;
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

using quantization::BlockFormat;
using quantization::BlockWeight;

BlockWeight rounded(const Product& product, const BlockFormat& format, const BlockGptqOptions& options = {},
                    std::size_t threads = 1) {
  const Damping damping(product.gram(), 0.01);
  return BlockGptq(product.gram(), damping, format, options, kernels(), threads).round(product.weight);
}

std::vector<double> matrix_of(const Gram& gram, const Damping& damping) {
  std::vector<double> a(gram.values.begin(), gram.values.end());
  for (std::size_t i = 0; i < gram.rows; ++i) {
    for (std::size_t j = 0; j < gram.rows; ++j) a[i * gram.rows + j] *= damping.keep;
    a[i * gram.rows + i] += damping.more[i];
  }
  return a;
}

std::vector<double> inverse_of(std::vector<double> a, std::size_t n) {  // by Gauss and Jordan
  std::vector<double> inverse(n * n);
  for (std::size_t i = 0; i < n; ++i) inverse[i * n + i] = 1;
  for (std::size_t p = 0; p < n; ++p) {
    const double pivot = a[p * n + p];
    for (std::size_t j = 0; j < n; ++j) a[p * n + j] /= pivot, inverse[p * n + j] /= pivot;
    for (std::size_t i = 0; i < n; ++i) {
      const double factor = a[i * n + p];
      for (std::size_t j = 0; i != p && j < n; ++j) {
        a[i * n + j] -= factor * a[p * n + j];
        inverse[i * n + j] -= factor * inverse[p * n + j];
      }
    }
  }
  return inverse;
}

/// GPTQ as its paper has it, in double and in the order of the weights: each error is spread over all weights after it,
/// and a block's scales are those of its weights when it begins.
BlockWeight textbook(const Product& product, const BlockFormat& format) {
  const std::size_t n = product.rows, block = static_cast<std::size_t>(format.block);
  const Damping damping(product.gram(), 0.01);
  auto rest = inverse_of(matrix_of(product.gram(), damping), n);
  auto made =
      quantization::make_blocks(static_cast<std::int64_t>(n), static_cast<std::int64_t>(product.columns), format);
  const auto blocks = static_cast<std::size_t>(made.blocks());
  std::vector<double> values(product.weight.begin(), product.weight.end());
  for (std::size_t j = 0; j < n; ++j) {
    for (std::size_t m = 0; m < product.columns; ++m) {
      double* row = values.data() + m * n;
      const std::size_t at = m * blocks + j / block;
      if (j % block == 0) {
        const std::vector<float> now(row + j, row + std::min(j + block, n));
        const auto importance = std::span(damping.diagonal).subspan(j, now.size());
        const auto found = quantization::search(now, static_cast<std::int64_t>(now.size()), format, importance);
        made.scales[at] = found.scales[0];
        made.zero_points[at] = found.zero_points[0];
      }
      const double scale = made.scales[at], zero = made.zero_points[at];
      const double q = std::clamp(std::nearbyint(row[j] / scale + zero), 0.0, static_cast<double>(format.largest()));
      made.integers[m * n + j] = static_cast<std::uint8_t>(q);
      const double error = (row[j] - scale * (q - zero)) / rest[j * n + j];
      for (std::size_t k = j + 1; k < n; ++k) row[k] -= error * rest[j * n + k];
    }
    const std::vector<double> line(rest.begin() + static_cast<std::ptrdiff_t>(j * n),
                                   rest.begin() + static_cast<std::ptrdiff_t>((j + 1) * n));
    for (std::size_t i = j + 1; i < n; ++i) {
      for (std::size_t k = j + 1; k < n; ++k) rest[i * n + k] -= line[i] * line[k] / line[j];
    }
  }
  return made;
}

TEST(BlockGptq, IsThatOfItsPaper) {
  const auto product = make_product(Inputs::low_rank, 120, 20, 500);  // the last block is shorter
  for (const std::int64_t block : {32, 16}) {
    for (const bool symmetric : {false, true}) {
      const BlockFormat format{.bits = 4, .block = block, .symmetric = symmetric};
      const auto found = rounded(product, format, {.activation_order = false});
      const auto expected = textbook(product, format);
      std::size_t other = 0;  // where sums in float and in double are on two sides of a border
      for (std::size_t i = 0; i < found.integers.size(); ++i)
        other += found.integers[i] != expected.integers[i] ? 1 : 0;
      EXPECT_LE(other, found.integers.size() / 25) << block << symmetric;
      EXPECT_NEAR(output_sqnr(product, product.gram(), found), output_sqnr(product, product.gram(), expected), 0.1);
    }
  }
}

// Held-back SQNR in dB.
TEST(BlockGptq, GainsOnInputsItHasNotSeen) {
  struct Row {
    Inputs inputs;
    int bits;
    double nearest, search, gptq;  // at least so much better than the one before
  };
  for (const Row& row :
       {Row{Inputs::outliers, 4, 20, 8, 0}, Row{Inputs::outliers, 2, 6, 8, 0}, Row{Inputs::low_rank, 4, 20, 0, 8},
        Row{Inputs::low_rank, 2, 6, 0, 6}, Row{Inputs::both, 4, 20, 8, 8}, Row{Inputs::both, 2, 6, 8, 5}}) {
    const auto product = make_product(row.inputs, 256, 64, 1024);
    const BlockFormat format{.bits = row.bits, .block = 32, .symmetric = false};
    const auto k = static_cast<std::int64_t>(product.rows);
    const Damping damping(product.gram(), 0.01);
    const auto sqnr = [&](const BlockWeight& weight) { return output_sqnr(product, product.held_back(), weight); };
    const double nearest = sqnr(quantization::nearest(product.weight, k, format));
    const double search = sqnr(quantization::search(product.weight, k, format, damping.diagonal));
    const auto found = rounded(product, format);
    const double gptq = sqnr(found);
    const double turned = sqnr(rounded(product, format, {.turns = 1}));
    std::printf("%d, %d bits: nearest %.2f, search %.2f, gptq %.2f, with a turn %.2f dB\n",
                static_cast<int>(row.inputs), row.bits, nearest, search, gptq, turned);
    EXPECT_GT(nearest, row.nearest);
    EXPECT_GT(search, nearest + row.search);
    EXPECT_GT(gptq, search + row.gptq - 0.05);
    EXPECT_GT(turned, gptq + (row.inputs == Inputs::outliers ? -0.05 : 0.3));
  }
}

TEST(BlockGptq, ThreadsAndStripesChangeNothing) {
  const auto product = make_product(Inputs::both, 150, 300, 400);
  for (const std::int64_t block : {32, 0}) {
    const BlockFormat format{.bits = 4, .block = block, .symmetric = false};
    const Damping damping(product.gram(), 0.01);
    const auto whole = rounded(product, format, {.turns = 2});
    const auto threaded = rounded(product, format, {.turns = 2}, 3);
    EXPECT_EQ(whole.integers, threaded.integers);
    EXPECT_EQ(whole.scales, threaded.scales);
    const BlockGptq gptq(product.gram(), damping, format, {.turns = 2}, kernels(), 1);
    std::size_t at = 0;
    for (const std::size_t columns : {std::size_t{256}, std::size_t{44}}) {
      const auto stripe = std::span(product.weight).subspan(at * product.rows, columns * product.rows);
      const auto made = gptq.round(stripe);
      const auto blocks = static_cast<std::size_t>(made.blocks());
      for (std::size_t i = 0; i < made.integers.size(); ++i) {
        ASSERT_EQ(made.integers[i], whole.integers[at * product.rows + i]) << i;
      }
      for (std::size_t i = 0; i < made.scales.size(); ++i) ASSERT_EQ(made.scales[i], whole.scales[at * blocks + i]);
      at += columns;
    }
  }
}

TEST(BlockGptq, EveryBlockSizeAndOrderGains) {
  const auto product = make_product(Inputs::low_rank, 600, 17, 900);
  for (const std::int64_t block : {16, 128, 200, 256, 512, 0}) {
    for (const bool ordered : {false, true}) {
      const BlockFormat format{.bits = 4, .block = block, .symmetric = false};
      const auto plain = quantization::search(product.weight, 600, format);
      const auto made = rounded(product, format, {.activation_order = ordered});
      EXPECT_GT(output_sqnr(product, product.gram(), made), output_sqnr(product, product.gram(), plain) + 7) << block;
    }
  }
  const BlockFormat format{.bits = 4, .block = 32, .symmetric = false};
  EXPECT_GT(output_sqnr(product, product.gram(), rounded(product, format)),
            output_sqnr(product, product.gram(), rounded(product, format, {.scales_first = true})));
}

TEST(BlockGptq, StrangeSumsAreNoTrouble) {
  const BlockFormat format{.bits = 4, .block = 32, .symmetric = false};
  auto product = make_product(Inputs::outliers, 64, 5, 200);
  std::fill_n(product.weight.begin(), 64, 0.0F);
  const auto plain = quantization::search(product.weight, 64, format);
  const std::vector<float> sums = product.sums;
  for (const int kind : {0, 1, 2, 3}) {
    product.sums = kind == 2 ? std::vector<float>(sums.size(), 1.0F) : sums;
    for (std::size_t i = 0; i < 64; ++i) {
      for (std::size_t j = 0; j < 64; ++j) {
        if (kind == 0 || (kind == 1 && (i < 40 || j < 40))) product.sums[i * 64 + j] = 0;  // inputs that are always 0
        if (kind == 3) product.sums[i * 64 + j] *= 1e-30F;
      }
    }
    const auto made = rounded(product, format, {.turns = 2});
    for (const float scale : made.scales) EXPECT_TRUE(std::isfinite(scale)) << kind;
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(made.integers[i], made.zero_points[i / 32]);
    const auto alone = rounded(product, format);
    EXPECT_TRUE(kind != 0 || alone.integers == plain.integers) << "no inputs: as without them";
  }
  EXPECT_TRUE(rounded(make_product(Inputs::outliers, 32, 0, 10), format).integers.empty());
}

// The error by the matrix of Damping, in double.
double damped_error(const Product& product, const BlockWeight& made) {
  const auto a = matrix_of(product.gram(), Damping(product.gram(), 0.01));
  std::vector<float> stored(product.weight.size());
  dequantize(made, stored);
  const std::size_t n = product.rows;
  double sum = 0;
  for (std::size_t c = 0; c < product.columns; ++c) {
    for (std::size_t i = 0; i < n; ++i) {
      const double d = stored[c * n + i] - product.weight[c * n + i];
      for (std::size_t j = 0; j < n; ++j) sum += d * a[i * n + j] * (stored[c * n + j] - product.weight[c * n + j]);
    }
  }
  return sum;
}

TEST(BlockRefinement, GainEachTime) {
  const auto product = make_product(Inputs::low_rank, 300, 17, 900);
  for (const std::int64_t block : {16, 32, 100, 128, 200, 256, 0}) {
    for (const bool symmetric : {false, true}) {
      const BlockFormat format{.bits = 4, .block = block, .symmetric = symmetric};
      double before = damped_error(product, rounded(product, format, {.turns = 0}));
      for (const std::size_t turns : {1, 2, 4}) {
        const double after = damped_error(product, rounded(product, format, {.turns = turns}));
        EXPECT_LT(after, before * (turns == 1 ? 0.97 : 1.001)) << block << ' ' << turns;
        before = after;
      }
    }
  }
}

// After many turns neither another scale of a block nor another integer is better.
TEST(BlockRefinement, LeaveNothingToGain) {
  for (const std::int64_t block : {16, 0}) {
    const auto product = make_product(Inputs::low_rank, block == 0 ? 300 : 100, 9, 900);
    const std::size_t n = product.rows, size = block == 0 ? n : 16, blocks = (n + size - 1) / size;
    const auto made = rounded(product, {.bits = 4, .block = block, .symmetric = false}, {.turns = 60});
    const auto a = matrix_of(product.gram(), Damping(product.gram(), 0.01));
    std::vector<float> stored(product.weight.size());
    dequantize(made, stored);
    for (std::size_t c = 0; c < product.columns; ++c) {
      std::vector<double> of_scale(blocks), curve(blocks);
      for (std::size_t k = 0; k < n; ++k) {
        double residual = 0;
        for (std::size_t j = 0; j < n; ++j) residual += a[k * n + j] * (stored[c * n + j] - product.weight[c * n + j]);
        const std::size_t b = k / size;
        const int integer = made.integers[c * n + k], m = integer - made.zero_points[c * blocks + b];
        const double scale = made.scales[c * blocks + b], steps = -residual / (a[k * n + k] * scale);
        EXPECT_TRUE(integer == 0 || steps > -0.51) << c << ' ' << k;
        EXPECT_TRUE(integer == 15 || steps < 0.51) << c << ' ' << k;
        of_scale[b] += m * residual;
        for (std::size_t j = b * size; j < std::min(b * size + size, n); ++j) {
          curve[b] += m * a[k * n + j] * (made.integers[c * n + j] - made.zero_points[c * blocks + b]);
        }
      }
      for (std::size_t b = 0; b < blocks; ++b) {
        EXPECT_LT(std::fabs(of_scale[b]), 1e-3 * curve[b] * std::fabs(made.scales[c * blocks + b])) << c << ' ' << b;
      }
    }
  }
}

TEST(BlockRefinement, KeepZerosThatSparsityHasSet) {
  auto product = make_product(Inputs::low_rank, 96, 20, 400);
  for (std::size_t i = 0; i < product.weight.size(); i += 2) product.weight[i] = 0;
  const auto made = rounded(product, {.bits = 4, .block = 32, .symmetric = false}, {.keep_zeros = true, .turns = 2});
  std::vector<float> stored(product.weight.size());
  dequantize(made, stored);
  for (std::size_t i = 0; i < stored.size(); i += 2) ASSERT_EQ(stored[i], 0) << i;
}

TEST(BlockError, IsThatOfTheOutputs) {
  const std::vector<float> inputs = normal(50 * 20, 4), weight = normal(20 * 3, 5);
  const auto sums = sums_of(inputs, 20);
  const auto made = quantization::nearest(weight, 20, {.bits = 2, .block = 16});
  std::vector<float> stored(weight.size());
  dequantize(made, stored);
  const auto errors = column_errors(Gram{sums, 20, 50}, weight, made, kernels(), 2);
  const auto by_rows = column_errors(InputRows{inputs, 20, 50}, weight, made, kernels(), 2);
  for (std::size_t n = 0; n < 3; ++n) {
    double sum = 0;
    for (std::size_t i = 0; i < 50; ++i) {
      double difference = 0;
      for (std::size_t k = 0; k < 20; ++k) difference += inputs[i * 20 + k] * (stored[n * 20 + k] - weight[n * 20 + k]);
      sum += difference * difference;
    }
    EXPECT_NEAR(errors[n], sum, 1e-4 * sum);
    EXPECT_NEAR(by_rows[n], sum, 1e-4 * sum);
  }
}

TEST(BlockError, DivisorsAreThoseOfTheInputs) {
  const std::vector<float> inputs = normal(50 * 20, 4), weight = normal(20 * 3, 5);
  std::vector<float> divisors(20), divided = inputs;
  for (std::size_t k = 0; k < 20; ++k) divisors[k] = std::exp2(static_cast<float>(k % 5) - 2);
  for (std::size_t i = 0; i < divided.size(); ++i) divided[i] /= divisors[i % 20];
  const auto sums = sums_of(inputs, 20), of_divided = sums_of(divided, 20);
  const Gram plain{of_divided, 20, 50}, by_divisors{sums, 20, 50, divisors};
  const auto made = quantization::nearest(weight, 20, {.bits = 2, .block = 16});
  const auto expected = column_errors(plain, weight, made, kernels(), 1);
  const auto by_sums = column_errors(by_divisors, weight, made, kernels(), 1);
  const auto by_rows = column_errors(InputRows{inputs, 20, 50, divisors}, weight, made, kernels(), 1);
  for (std::size_t n = 0; n < 3; ++n) {
    EXPECT_NEAR(by_sums[n], expected[n], 1e-4 * expected[n]);
    EXPECT_NEAR(by_rows[n], expected[n], 1e-4 * expected[n]);
  }
  const Damping a(plain, 0.1), b(by_divisors, 0.1);
  EXPECT_NEAR(a.keep, b.keep, 1e-5);
  for (std::size_t i = 0; i < 20; ++i) EXPECT_NEAR(a.diagonal[i], b.diagonal[i], 1e-4 * a.diagonal[i]);
}

TEST(Damping, FewPositionsGetMore) {
  EXPECT_EQ(usual_damping(0), 0.5);
  EXPECT_EQ(usual_damping(10), 0.5);
  EXPECT_NEAR(usual_damping(6400), 0.1, 1e-12);
}

TEST(Damping, ShrinksWhatIsNoMoreThanChance) {
  const auto independent = make_product(Inputs::outliers, 64, 1, 300);
  EXPECT_LT(Damping(independent.gram(), 0.01).keep, 0.2);
  const auto mixed = make_product(Inputs::low_rank, 64, 1, 5000);
  const Damping damping(mixed.gram(), 0.01);
  EXPECT_GT(damping.keep, 0.95);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_NEAR(damping.diagonal[i], 1.01 * mixed.gram().at(i, i), 1e-2);
  EXPECT_EQ(Damping({mixed.sums, 64, 1}, 0.01).keep, 0) << "one position says nothing of correlations";
  EXPECT_GT(Damping({std::vector<float>(4), 2, 10}, 0.01).diagonal[1], 0);
}

BlockSolution solved(const Product& product, const BlockFormat& format, BlockMethod method, bool held_back = true,
                     std::size_t threads = 1) {
  const auto other = held_back ? std::optional(product.held_back()) : std::nullopt;
  return BlockSolver(product.gram(), other, format, {.method = method}, kernels(), threads).solve(product.weight);
}

// What is gained over nearest rounding and GPTQ alone on inputs that no method has seen.
TEST(BlockSolver, EachRungGainsOnHeldBackInputs) {
  struct Row {
    Inputs inputs;
    int bits;
    std::int64_t block;
    double gain;  // of the whole ladder over search, in dB
  };
  for (const Row& row :
       {Row{Inputs::outliers, 4, 32, 0}, Row{Inputs::outliers, 2, 128, 0}, Row{Inputs::low_rank, 4, 32, 11},
        Row{Inputs::low_rank, 2, 128, 10}, Row{Inputs::both, 4, 128, 14}, Row{Inputs::both, 2, 32, 11}}) {
    const auto product = make_product(row.inputs, 256, 64, 1024);
    const BlockFormat format{.bits = row.bits, .block = row.block, .symmetric = false};
    const auto best = solved(product, format, BlockMethod::automatic);
    const auto db = [&](double error) { return 10 * std::log10(best.error_nearest / error); };
    std::printf("%d, %d bits, block %d: over nearest: search %.2f, gptq %.2f, automatic %.2f dB\n",
                static_cast<int>(row.inputs), row.bits, static_cast<int>(row.block), db(best.error_search),
                db(best.error_gptq), db(best.error));
    EXPECT_GT(db(best.error), db(best.error_search) + row.gain);
    EXPECT_LE(best.error, best.error_search);
    EXPECT_LE(best.error, best.error_nearest);
    EXPECT_LE(best.error, best.error_gptq);
  }
}

TEST(BlockSolver, NoColumnIsWorseThanASearchedOne) {
  const auto product = make_product(Inputs::both, 100, 40, 60);  // few positions
  const BlockFormat format{.bits = 4, .block = 32, .symmetric = true};
  for (const bool held_back : {false, true}) {
    const Gram judge = held_back ? product.held_back() : product.gram();
    const auto best = solved(product, format, BlockMethod::automatic, held_back);
    const auto errors = column_errors(judge, product.weight, best.weight, kernels(), 1);
    for (const auto method : {BlockMethod::search, BlockMethod::nearest, BlockMethod::gptq}) {
      const auto other = column_errors(judge, product.weight, solved(product, format, method).weight, kernels(), 1);
      for (std::size_t n = 0; n < 40; ++n) EXPECT_LE(errors[n], other[n]) << n;
    }
    EXPECT_EQ(errors, best.column_errors);
  }
}

TEST(BlockSolver, MethodsAloneAreThoseOfTheLadder) {
  const auto product = make_product(Inputs::low_rank, 96, 20, 400);
  const BlockFormat format{.bits = 4, .block = 32, .symmetric = false};
  const auto best = solved(product, format, BlockMethod::automatic);
  EXPECT_EQ(solved(product, format, BlockMethod::nearest).error, best.error_nearest);
  EXPECT_EQ(solved(product, format, BlockMethod::search).error, best.error_search);
  EXPECT_EQ(solved(product, format, BlockMethod::gptq).error, best.error_gptq);
  EXPECT_EQ(solved(product, format, BlockMethod::nearest).weight.integers,
            quantization::nearest(product.weight, 96, format).integers);
}

TEST(BlockSolver, ThreadsAndStripesChangeNothing) {
  const auto product = make_product(Inputs::both, 130, 300, 400);
  const BlockFormat format{.bits = 2, .block = 32, .symmetric = false};
  const auto whole = solved(product, format, BlockMethod::automatic, true, 3);
  const BlockSolver solver(product.gram(), product.held_back(), format, {}, kernels(), 1);
  for (const std::size_t first : {std::size_t{0}, std::size_t{128}}) {
    const std::size_t count = first == 0 ? 128 : 172, blocks = 5;
    const auto stripe = solver.solve(std::span(product.weight).subspan(first * 130, count * 130));
    EXPECT_TRUE(std::equal(stripe.weight.integers.begin(), stripe.weight.integers.end(),
                           whole.weight.integers.data() + first * 130));
    EXPECT_TRUE(std::equal(stripe.weight.scales.begin(), stripe.weight.scales.end(),
                           whole.weight.scales.data() + first * blocks));
  }
}

TEST(BlockSolver, NothingIsNothing) {
  for (const std::size_t rows : {std::size_t{0}, std::size_t{40}}) {
    const std::vector<float> sums(rows * rows);
    const BlockSolver solver({sums, rows, 0}, {}, {}, {}, kernels(), 2);
    EXPECT_TRUE(solver.solve({}).weight.integers.empty());
  }
}

std::vector<float> pruned(const Product& product, std::size_t refinements = 10, std::size_t threads = 1) {
  const Damping damping(product.gram(), 0.01);
  return TwoOfFour(product.gram(), damping, {.refinements = refinements}, kernels(), threads).prune(product.weight);
}

std::vector<float> without_smallest(const Product& product) {
  auto values = product.weight;
  for (std::size_t at = 0; at + 4 <= values.size(); at += 4) {
    std::array<float, 4> sizes{};
    for (std::size_t i = 0; i < 4; ++i) sizes[i] = std::fabs(values[at + i]);
    std::sort(sizes.begin(), sizes.end());
    for (std::size_t i = 0; i < 4; ++i) {
      if (std::fabs(values[at + i]) <= sizes[1]) values[at + i] = 0;
    }
  }
  return values;
}

// |x·W − x·V|² by a Gram matrix.
double error_of(const Product& product, std::span<const float> gram, const std::vector<float>& values) {
  const std::size_t rows = product.rows;
  double sum = 0;
  for (std::size_t n = 0; n < product.columns; ++n) {
    for (std::size_t i = 0; i < rows; ++i) {
      double line = 0;
      for (std::size_t j = 0; j < rows; ++j) {
        line += static_cast<double>(gram[i * rows + j]) * (values[n * rows + j] - product.weight[n * rows + j]);
      }
      sum += line * (values[n * rows + i] - product.weight[n * rows + i]);
    }
  }
  return sum;
}

TEST(TwoOfFour, LosesLessThanTheSmallestWeights) {
  for (const Inputs inputs : {Inputs::outliers, Inputs::low_rank, Inputs::both}) {
    const auto product = make_product(inputs, 128, 32, 1000);
    const double plain = error_of(product, product.other_sums, without_smallest(product));
    const double at_once = error_of(product, product.other_sums, pruned(product, 0));
    const double refined = error_of(product, product.other_sums, pruned(product));
    std::printf("%d: %.3f of the error of the smallest, refined %.3f\n", static_cast<int>(inputs), at_once / plain,
                refined / plain);
    EXPECT_LT(at_once, (inputs == Inputs::outliers ? 0.4 : 0.25) * plain);
    EXPECT_LE(refined, (inputs == Inputs::outliers ? 1.001 : 0.8) * at_once);
  }
}

TEST(TwoOfFour, TwoOfEachFourAreZero) {
  const auto product = make_product(Inputs::both, 90, 21, 200);  // the last two stay
  const auto values = pruned(product);
  for (std::size_t n = 0; n < 21; ++n) {
    for (std::size_t k = 0; k < 88; k += 4) {
      EXPECT_EQ(std::count(&values[n * 90 + k], &values[n * 90 + k] + 4, 0.0F), 2) << n << ' ' << k;
    }
    EXPECT_NE(values[n * 90 + 88], 0);
    EXPECT_NE(values[n * 90 + 89], 0);
  }
}

// One group of four: the pair is the best of the six, each with the two that stay fitted.
TEST(TwoOfFour, TheBestPairGoes) {
  const auto product = make_product(Inputs::low_rank, 4, 50, 300);
  const Damping damping(product.gram(), 0.01);
  std::vector<float> matrix(product.sums);
  for (std::size_t i = 0; i < 16; ++i) matrix[i] *= damping.keep;
  for (std::size_t i = 0; i < 4; ++i) matrix[5 * i] += damping.more[i];
  const auto values = pruned(product);
  for (std::size_t n = 0; n < 50; ++n) {
    Product column = product;
    column.columns = 1;
    column.weight.assign(&product.weight[4 * n], &product.weight[4 * n] + 4);
    double best = 1e30;
    for (std::size_t p = 0; p < 4; ++p) {
      for (std::size_t q = p + 1; q < 4; ++q) {
        // The others by elimination: A_RR d = A_RP w_P.
        std::array<std::size_t, 2> r{};
        for (std::size_t i = 0, at = 0; i < 4; ++i) {
          if (i != p && i != q) r[at++] = i;
        }
        const auto a = [&](std::size_t i, std::size_t j) { return static_cast<double>(matrix[4 * i + j]); };
        const auto& w = column.weight;
        const double y0 = a(r[0], p) * w[p] + a(r[0], q) * w[q], y1 = a(r[1], p) * w[p] + a(r[1], q) * w[q];
        const double det = a(r[0], r[0]) * a(r[1], r[1]) - a(r[0], r[1]) * a(r[0], r[1]);
        std::vector<float> made(4);
        made[r[0]] = static_cast<float>(w[r[0]] + (a(r[1], r[1]) * y0 - a(r[0], r[1]) * y1) / det);
        made[r[1]] = static_cast<float>(w[r[1]] + (a(r[0], r[0]) * y1 - a(r[0], r[1]) * y0) / det);
        best = std::min(best, error_of(column, matrix, made));
      }
    }
    EXPECT_LT(error_of(column, matrix, {&values[4 * n], &values[4 * n] + 4}), 1.001 * best + 1e-9) << n;
  }
}

TEST(TwoOfFour, ZerosStayWhenTheRestIsQuantized) {
  const auto product = make_product(Inputs::low_rank, 128, 40, 600);
  Product sparse = product;
  sparse.weight = pruned(product);
  const BlockFormat format{.bits = 4, .block = 32, .symmetric = false};
  const auto error = [&](BlockMethod method) {
    const auto made = BlockSolver(product.gram(), {}, format, {.method = method, .keep_zeros = true}, kernels(), 1)
                          .solve(sparse.weight)
                          .weight;
    std::vector<float> stored(sparse.weight.size());
    dequantize(made, stored);
    for (std::size_t i = 0; i < stored.size(); ++i) EXPECT_TRUE(sparse.weight[i] != 0 || stored[i] == 0) << i;
    return error_of(sparse, product.other_sums, stored);
  };
  EXPECT_LT(error(BlockMethod::automatic), 0.5 * error(BlockMethod::nearest));
}

// Errors are told of the weights themselves, not of what sparsity left of them.
TEST(TwoOfFour, ErrorsAreThoseOfTheDenseWeights) {
  const auto product = make_product(Inputs::both, 96, 30, 400);
  const auto sparse = pruned(product);
  const BlockFormat format{.bits = 8, .block = 32, .symmetric = false};
  const auto held_back = product.held_back();
  for (const auto method : {BlockMethod::gptq, BlockMethod::automatic}) {
    const auto solution =
        BlockSolver(product.gram(), held_back, format, {.method = method, .keep_zeros = true}, kernels(), 1)
            .solve(sparse, product.weight);
    std::vector<float> stored(sparse.size());
    dequantize(solution.weight, stored);
    const double expected = error_of(product, product.other_sums, stored);
    EXPECT_NEAR(solution.error, expected, 0.01 * expected);
  }
}

TEST(TwoOfFour, ThreadsAndStripesChangeNothing) {
  const auto product = make_product(Inputs::both, 150, 200, 300);
  const auto whole = pruned(product, 5, 3);
  const Damping damping(product.gram(), 0.01);
  const TwoOfFour sparsity(product.gram(), damping, {.refinements = 5}, kernels(), 1);
  const auto first = sparsity.prune(std::span(product.weight).first(128 * 150));
  const auto rest = sparsity.prune(std::span(product.weight).subspan(128 * 150));
  EXPECT_TRUE(std::equal(first.begin(), first.end(), whole.begin()));
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + 128 * 150));
}

}  // namespace
}  // namespace detent::solve
