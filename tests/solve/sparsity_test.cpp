#include "solve/blocks/block_error.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "solve/block_support.h"
#include "solve/blocks/block_solver.h"

namespace detent::solve {
namespace {

using quantization::BlockFormat;

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
