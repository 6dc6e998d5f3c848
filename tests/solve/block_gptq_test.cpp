#include "solve/blocks/block_solver.h"

#include <gtest/gtest.h>

#include <cmath>

#include "solve/block_support.h"

namespace detent::solve {
namespace {

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

}  // namespace
}  // namespace detent::solve
