#include "solve/algebra/kernels.h"

#include <gtest/gtest.h>

#include "solve/support.h"

namespace detent::solve {
namespace {

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

}  // namespace
}  // namespace detent::solve
