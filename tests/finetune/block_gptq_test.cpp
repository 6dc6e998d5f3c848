#include "finetune/block_gptq.h"

#include <gtest/gtest.h>

#include <cmath>

#include "finetune/block_refit.h"
#include "finetune/block_support.h"

namespace detent::finetune {
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
    auto found = rounded(product, format);
    const double gptq = sqnr(found);
    refit_scales(product.gram(), damping, product.weight, found, kernels(), 1);
    const double refitted = sqnr(found);
    std::printf("%d, %d bits: nearest %.2f, search %.2f, gptq %.2f, refitted %.2f dB\n", static_cast<int>(row.inputs),
                row.bits, nearest, search, gptq, refitted);
    EXPECT_GT(nearest, row.nearest);
    EXPECT_GT(search, nearest + row.search);
    EXPECT_GT(gptq, search + row.gptq - 0.05);
    EXPECT_GT(refitted, gptq + (row.inputs == Inputs::outliers ? -0.05 : 0.3));
  }
}

TEST(BlockGptq, ThreadsAndStripesChangeNothing) {
  const auto product = make_product(Inputs::both, 150, 300, 400);
  for (const std::int64_t block : {32, 0}) {
    const BlockFormat format{.bits = 4, .block = block, .symmetric = false};
    const Damping damping(product.gram(), 0.01);
    auto whole = rounded(product, format);
    const auto threaded = rounded(product, format, {}, 3);
    EXPECT_EQ(whole.integers, threaded.integers);
    EXPECT_EQ(whole.scales, threaded.scales);
    refit_scales(product.gram(), damping, product.weight, whole, kernels(), 3);
    const BlockGptq gptq(product.gram(), damping, format, {}, kernels(), 1);
    std::size_t at = 0;
    for (const std::size_t columns : {std::size_t{256}, std::size_t{44}}) {
      const auto stripe = std::span(product.weight).subspan(at * product.rows, columns * product.rows);
      auto made = gptq.round(stripe);
      refit_scales(product.gram(), damping, stripe, made, kernels(), 1);
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
    auto made = rounded(product, format);
    refit_scales(product.gram(), Damping(product.gram(), 0.01), product.weight, made, kernels(), 1);
    for (const float scale : made.scales) EXPECT_TRUE(std::isfinite(scale)) << kind;
    for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(made.integers[i], made.zero_points[i / 32]);
    EXPECT_TRUE(kind != 0 || made.integers == plain.integers) << "no inputs: as without them";
  }
  EXPECT_TRUE(rounded(make_product(Inputs::outliers, 32, 0, 10), format).integers.empty());
}

TEST(BlockRefit, LeavesNoErrorThatAScaleCouldTake) {
  const auto product = make_product(Inputs::low_rank, 100, 9, 300);
  const Damping damping(product.gram(), 0.01);
  for (const bool symmetric : {false, true}) {
    const BlockFormat format{.bits = 4, .block = 16, .symmetric = symmetric};
    auto made = quantization::search(product.weight, 100, format);
    const auto before = made;
    refit_scales(product.gram(), damping, product.weight, made, kernels(), 1);
    EXPECT_EQ(made.integers, before.integers);
    EXPECT_LT(total(column_errors(product.gram(), product.weight, made, kernels(), 1)),
              0.8 * total(column_errors(product.gram(), product.weight, before, kernels(), 1)));
    const auto a = matrix_of(product.gram(), damping);
    std::vector<float> stored(product.weight.size());
    dequantize(made, stored);
    for (std::size_t n = 0; n < 9; ++n) {
      for (std::size_t b = 0; b < 7; ++b) {
        double gradient = 0, size = 0;
        for (std::size_t k = 16 * b; k < std::min<std::size_t>(16 * b + 16, 100); ++k) {
          const double m = made.integers[n * 100 + k] - made.zero_points[n * 7 + b];
          for (std::size_t j = 0; j < 100; ++j) {
            const double term = m * a[k * 100 + j] * (stored[n * 100 + j] - product.weight[n * 100 + j]);
            gradient += term;
            size += std::fabs(term);
          }
        }
        EXPECT_LT(std::fabs(gradient), 1e-4 * size) << n << ' ' << b;
      }
    }
  }
}

TEST(BlockError, IsThatOfTheOutputs) {
  const std::vector<float> inputs = normal(50 * 20, 4), weight = normal(20 * 3, 5);
  const auto sums = sums_of(inputs, 20);
  const auto made = quantization::nearest(weight, 20, {.bits = 2, .block = 16});
  std::vector<float> stored(weight.size());
  dequantize(made, stored);
  const auto errors = column_errors({sums, 20, 50}, weight, made, kernels(), 2);
  for (std::size_t n = 0; n < 3; ++n) {
    double sum = 0;
    for (std::size_t i = 0; i < 50; ++i) {
      double difference = 0;
      for (std::size_t k = 0; k < 20; ++k) difference += inputs[i * 20 + k] * (stored[n * 20 + k] - weight[n * 20 + k]);
      sum += difference * difference;
    }
    EXPECT_NEAR(errors[n], sum, 1e-4 * sum);
  }
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
}  // namespace detent::finetune
