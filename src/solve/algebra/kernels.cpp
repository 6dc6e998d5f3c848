#include "solve/algebra/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/numbers.h"
#include "base/parallel.h"
#include "shim/library.h"

namespace detent::solve {

const Kernels& cpu_kernels(const std::optional<std::filesystem::path>& plugin) {
  static const Kernels& kernels = [&]() -> const Kernels& {
    const shim::Library library = shim::load_cpu_plugin(plugin);
    const Kernels* found = reinterpret_cast<KernelsEntry*>(library.symbol(kKernelsEntryName))(kKernelsVersion);
    if (found == nullptr) {
      throw device_error(fmt::format("the plugin '{}' is of another version than this detent", library.name()),
                         "use the libdetent_cpu.so that was built with it");
    }
    return *found;
  }();
  return kernels;
}

DETENT_VECTOR_CLONES
float dot(const float* a, const float* b, std::size_t count) {
  return lanes::sum<float>(count, [=](std::size_t i) { return a[i] * b[i]; });
}

DETENT_VECTOR_CLONES
double dot_double(const float* a, const float* b, std::size_t count) {
  return lanes::sum<double>(count, [=](std::size_t i) { return static_cast<double>(a[i]) * b[i]; });
}

DETENT_VECTOR_CLONES
double dot_double(const double* a, const float* b, std::size_t count) {
  return lanes::sum<double>(count, [=](std::size_t i) { return a[i] * b[i]; });
}

DETENT_VECTOR_CLONES
double dot_double(const double* a, const double* b, std::size_t count) {
  return lanes::sum<double>(count, [=](std::size_t i) { return a[i] * b[i]; });
}

DETENT_VECTOR_CLONES
double sum_double(const float* a, std::size_t count) {
  return lanes::sum<double>(count, [=](std::size_t i) { return static_cast<double>(a[i]); });
}

DETENT_VECTOR_CLONES
void add_scaled(float* __restrict y, float factor, const float* __restrict x, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

DETENT_VECTOR_CLONES
void add_scaled(double* __restrict y, double factor, const float* __restrict x, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

namespace {

constexpr std::size_t kRowsTogether = 256;  // of products
constexpr std::size_t kBlock = 64;          // on a side, so that reads and writes stay in the cache
constexpr std::size_t kWorthThreads = 256;  // rows

}  // namespace

void multiply_rows(const float* rows, std::size_t n, std::size_t size, float* out, std::size_t leading,
                   const Kernels& kernels, std::size_t threads) {
  parallel_for((n + kRowsTogether - 1) / kRowsTogether, threads, [&](std::size_t piece) {
    const std::size_t first = piece * kRowsTogether, last = std::min(first + kRowsTogether, n);
    kernels.gemm(gemm_of(last - first, last, size, true), rows + first * size, size, rows, size, out + first * leading,
                 leading);
  });
}

void mirror(float* matrix, std::size_t n, std::size_t threads) {
  parallel_for((n + kBlock - 1) / kBlock, n > kWorthThreads ? threads : 1, [&](std::size_t block) {
    const std::size_t first = block * kBlock, last = std::min(first + kBlock, n);
    for (std::size_t j = 0; j < last; j += kBlock) {
      for (std::size_t r = first; r < last; ++r) {
        for (std::size_t c = j; c < std::min(j + kBlock, r); ++c) matrix[c * n + r] = matrix[r * n + c];
      }
    }
  });
}

namespace {

constexpr std::size_t kRows = 256;  // of one piece of work

Gemm subtract(std::size_t m, std::size_t n, std::size_t k, bool transpose_b) {
  Gemm shape = gemm_of(m, n, k, transpose_b, 1);
  shape.alpha = -1;
  return shape;
}

}  // namespace

Cholesky::Cholesky(std::vector<float> matrix, std::size_t n, const Kernels& kernels, std::size_t threads,
                   double least_pivot)
    : factor_(std::move(matrix)), inverse_(n * kBlock), dependent_(n), n_(n), kernels_(kernels) {
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
    invert_diagonal(first, last);
    parallel_for(pieces, threads, [&](std::size_t piece) {
      const std::size_t row = first + piece * kRows;
      solve_rows(first, last, std::max(row, last), std::min(row + kRows, n));
    });
  }
}

// Each entry is taken out of the rest of its row at once, by columns that lie together.
void Cholesky::factor_diagonal(std::size_t first, std::size_t last, double mean, double least_pivot) {
  const std::size_t size = last - first;
  std::vector<float> columns(size * size);  // of the factor
  std::vector<double> rest(size);
  for (std::size_t i = 0; i < size; ++i) {
    float* line = factor_.data() + (first + i) * n_ + first;
    std::copy_n(line, i + 1, rest.begin());
    for (std::size_t j = 0; j < i; ++j) {
      float* column = columns.data() + j * size;
      column[i] = line[j] = dependent_[first + j] != 0 ? 0.0F : static_cast<float>(rest[j] / column[j]);
      add_scaled(rest.data() + j + 1, -static_cast<double>(line[j]), column + j + 1, i - j);
    }
    const double pivot = rest[i];
    dependent_[first + i] = pivot > least_pivot * mean ? 0 : 1;  // what is left of its other entries is rounding, too
    columns[i * size + i] = line[i] = static_cast<float>(std::sqrt(dependent_[first + i] != 0 ? mean : pivot));
    std::fill(line + i + 1, line + size, 0.0F);
  }
}

// Row by row: row i of the inverse is (e_i − sum over j < i of L_ij · row j) / L_ii.
void Cholesky::invert_diagonal(std::size_t first, std::size_t last) {
  for (std::size_t i = first; i < last; ++i) {
    float* line = inverse_.data() + i * kBlock;
    for (std::size_t j = first; j < i; ++j) {
      add_scaled(line, -row(i)[j], inverse_.data() + j * kBlock, j - first + 1);
    }
    line[i - first] = 1;
    for (std::size_t c = 0; c <= i - first; ++c) line[c] /= diagonal(i);
  }
}

void Cholesky::apply_inverse(std::size_t first, std::size_t last, bool transpose, float* block,
                             std::size_t rows) const {
  Gemm shape;
  shape.transpose_b = transpose;
  shape.n = shape.k = static_cast<std::int64_t>(last - first);
  std::vector<float> before(std::min(rows, kRows) * (last - first));
  for (std::size_t at = 0; at < rows; at += kRows) {
    const std::size_t count = std::min(kRows, rows - at);
    float* values = block + at * n_;
    for (std::size_t r = 0; r < count; ++r) {
      std::copy_n(values + r * n_, last - first, before.data() + r * (last - first));
    }
    shape.m = static_cast<std::int64_t>(count);
    kernels_.gemm(shape, before.data(), last - first, inverse_.data() + first * kBlock, kBlock, values, n_);
  }
}

void Cholesky::solve_rows(std::size_t first, std::size_t last, std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  apply_inverse(first, last, true, factor_.data() + begin * n_ + first, end - begin);
  for (std::size_t j = first; j < last; ++j) {
    for (std::size_t i = begin; dependent_[j] != 0 && i < end; ++i) factor_[i * n_ + j] = 0;
  }
}

void Cholesky::solve_half(float* values, std::size_t rows) const {
  for (std::size_t first = 0; first < n_; first += kBlock) {
    const std::size_t last = std::min(first + kBlock, n_);
    if (first > 0) {
      kernels_.gemm(subtract(rows, last - first, first, true), values, n_, row(first), n_, values + first, n_);
    }
    apply_inverse(first, last, true, values + first, rows);
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
    apply_inverse(first, last, false, values + first, rows);
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

void Cholesky::columns_below(const float* values, std::size_t columns, std::size_t first, std::size_t last,
                             float* block) const {
  if (last == n_) {
    std::fill_n(block, (last - first) * columns, 0.0F);
    return;
  }
  Gemm shape = gemm_of(last - first, columns, n_ - last, false);
  shape.transpose_a = true;
  kernels_.gemm(shape, row(last) + first, n_, values + last * columns, columns, block, columns);
}

void Cholesky::rows_times(std::size_t first, std::size_t last, const float* values, std::size_t columns,
                          float* block) const {
  kernels_.gemm(gemm_of(last - first, columns, last, false), row(first), n_, values, columns, block, columns);
}

void Cholesky::add_rows_transposed(std::size_t first, std::size_t last, const float* block, std::size_t columns,
                                   float* values) const {
  Gemm shape = gemm_of(last, columns, last - first, false, 1);
  shape.transpose_a = true;
  kernels_.gemm(shape, row(first), n_, block, columns, values, columns);
}

std::vector<std::size_t> rounding_order(const std::vector<double>& power, std::size_t block, bool by_power) {
  std::vector<std::size_t> order(power.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!by_power) return {order.rbegin(), order.rend()};
  std::vector<double> mean((order.size() + block - 1) / block);
  for (std::size_t i = 0; i < order.size(); ++i) {
    mean[i / block] += power[i] / static_cast<double>(std::min(block, order.size() - i / block * block));
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const std::size_t p = a / block, q = b / block;
    if (p != q) return mean[p] != mean[q] ? mean[p] > mean[q] : p < q;
    return power[a] > power[b];
  });
  return {order.rbegin(), order.rend()};
}

}  // namespace detent::solve
