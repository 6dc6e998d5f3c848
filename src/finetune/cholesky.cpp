#include "finetune/cholesky.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/parallel.h"
#include "finetune/lanes.h"

namespace detent::finetune {
namespace {

constexpr std::size_t kRows = 256;  // of one piece of work

Gemm subtract(std::size_t m, std::size_t n, std::size_t k, bool transpose_b) {
  Gemm shape;
  shape.transpose_b = transpose_b;
  shape.m = static_cast<std::int64_t>(m);
  shape.n = static_cast<std::int64_t>(n);
  shape.k = static_cast<std::int64_t>(k);
  shape.alpha = -1;
  shape.beta = 1;
  return shape;
}

}  // namespace

Cholesky::Cholesky(std::vector<float> matrix, std::size_t n, const Kernels& kernels, std::size_t threads,
                   double least_pivot)
    : factor_(std::move(matrix)), dependent_(n), n_(n), kernels_(kernels) {
  double trace = 0;
  for (std::size_t i = 0; i < n; ++i) trace += factor_[i * n + i];
  const double mean = trace > 0 ? trace / static_cast<double>(n) : 1.0;
  for (std::size_t first = 0; first < n; first += kBlock) {
    const std::size_t last = std::min(first + kBlock, n);
    const std::size_t pieces = (n - first + kRows - 1) / kRows;
    parallel_for(pieces, threads, [&](std::size_t piece) {
      const std::size_t row = first + piece * kRows;
      const std::size_t rows = std::min(kRows, n - row);
      if (first == 0) return;
      kernels_.gemm(subtract(rows, last - first, first, true), this->row(row), n, this->row(first), n,
                    factor_.data() + row * n + first, n);
    });
    factor_diagonal(first, last, mean, least_pivot);
    parallel_for(pieces, threads, [&](std::size_t piece) {
      const std::size_t row = first + piece * kRows;
      solve_rows(first, last, std::max(row, last), std::min(row + kRows, n));
    });
  }
}

void Cholesky::factor_diagonal(std::size_t first, std::size_t last, double mean, double least_pivot) {
  for (std::size_t i = first; i < last; ++i) {
    float* line = factor_.data() + i * n_;
    for (std::size_t j = first; j < i; ++j) {
      const float* other = row(j);
      const double rest = line[j] - dot_double(line + first, other + first, j - first);
      line[j] = dependent_[j] != 0 ? 0.0F : static_cast<float>(rest / other[j]);
    }
    const double pivot = line[i] - dot_double(line + first, line + first, i - first);
    dependent_[i] = pivot > least_pivot * mean ? 0 : 1;  // what is left of its other entries is rounding, too
    line[i] = static_cast<float>(std::sqrt(dependent_[i] != 0 ? mean : pivot));
  }
}

void Cholesky::solve_rows(std::size_t first, std::size_t last, std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    float* line = factor_.data() + i * n_;
    for (std::size_t j = first; j < last; ++j) {
      const float rest = line[j] - dot(line + first, row(j) + first, j - first);
      line[j] = dependent_[j] != 0 ? 0.0F : rest / diagonal(j);
    }
  }
}

void Cholesky::solve_half(float* values, std::size_t rows) const {
  for (std::size_t first = 0; first < n_; first += kBlock) {
    const std::size_t last = std::min(first + kBlock, n_);
    if (first > 0) {
      kernels_.gemm(subtract(rows, last - first, first, true), values, n_, row(first), n_, values + first, n_);
    }
    for (std::size_t r = 0; r < rows; ++r) {
      float* x = values + r * n_;
      for (std::size_t j = first; j < last; ++j)
        x[j] = (x[j] - dot(x + first, row(j) + first, j - first)) / diagonal(j);
    }
  }
}

void Cholesky::solve(float* values, std::size_t rows) const {
  solve_half(values, rows);
  for (std::size_t last = n_; last > 0;) {  // X L = Z
    const std::size_t first = (last - 1) / kBlock * kBlock;
    if (last < n_) {
      kernels_.gemm(subtract(rows, last - first, n_ - last, false), values + last, n_, row(last) + first, n_,
                    values + first, n_);
    }
    for (std::size_t r = 0; r < rows; ++r) {
      float* x = values + r * n_;
      for (std::size_t j = last; j-- > first;) {
        x[j] /= diagonal(j);
        add_scaled(x + first, -x[j], row(j) + first, j - first);
      }
    }
    last = first;
  }
}

void Cholesky::product_below(const float* values, std::size_t rows, std::size_t first, std::size_t last,
                             float* block) const {
  if (last == n_) {
    std::fill_n(block, rows * (last - first), 0.0F);
    return;
  }
  Gemm shape = subtract(rows, last - first, n_ - last, false);
  shape.alpha = 1;
  shape.beta = 0;
  kernels_.gemm(shape, values + last, n_, row(last) + first, n_, block, last - first);
}

}  // namespace detent::finetune
