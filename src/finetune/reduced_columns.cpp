#include "finetune/reduced_columns.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/parallel.h"
#include "finetune/cholesky.h"
#include "finetune/lanes.h"
#include "finetune/quadratic.h"

namespace detent::finetune {
namespace {

constexpr double kLeastPivot = 1e-7;   // of a factor's mean diagonal: what was picked is independent
constexpr double kLeastSquare = 1e-6;  // of the largest column: what is left below is rounding

constexpr std::size_t kRowsTogether = 256;  // of products

/// The lower half of X Xᵀ for n rows of `size` values, into a matrix whose rows are `leading` apart.
void multiply(const float* rows, std::size_t n, std::size_t size, float* out, std::size_t leading,
              const Kernels& kernels, std::size_t threads) {
  parallel_for((n + kRowsTogether - 1) / kRowsTogether, threads, [&](std::size_t piece) {
    const std::size_t first = piece * kRowsTogether, last = std::min(first + kRowsTogether, n);
    kernels.gemm(gemm_of(last - first, last, size, true), rows + first * size, size, rows, size, out + first * leading,
                 leading);
  });
}

void mirror(std::vector<float>& matrix, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < i; ++j) matrix[j * n + i] = matrix[i * n + j];
  }
}

/// X Xᵀ, of n × n.
std::vector<float> products(std::span<const float> inputs, std::size_t n, std::size_t fan_in, const Pixels& pixels,
                            const Kernels& kernels, std::size_t threads) {
  std::vector<float> all(n * n);
  if (pixels.count == 0) {
    multiply(inputs.data(), n, fan_in, all.data(), n, kernels, threads);
  } else {
    const std::size_t size = pixels.count + 1, elements = fan_in / pixels.channels;
    std::vector<float> each(size * size);  // row and column 0 are of the outside
    multiply(pixels.values.data(), pixels.count, pixels.channels, each.data() + size + 1, size, kernels, threads);
    mirror(each, size);
    for_row_pieces(n, threads, [&](RowRange rows) {
      for (std::size_t i = rows.first; i < rows.last; ++i) {
        for (std::size_t k = 0; k < elements; ++k) {
          const float* line = each.data() + pixels.behind[i * elements + k] * size;
          const std::uint32_t* behind = pixels.behind.data() + k;
          for (std::size_t j = 0; j <= i; ++j) all[i * n + j] += line[behind[j * elements]];
        }
      }
    });
  }
  mirror(all, n);
  return all;
}

struct Picked {
  std::size_t count = 0;
  std::vector<float> factor;  // L with L Lᵀ ≈ X Xᵀ: row i begins at i · n
};

Picked pick(const std::vector<float>& products, std::size_t n, double may_leave) {
  Picked picked{0, std::vector<float>(n * n)};
  std::vector<double> left(n);
  for (std::size_t i = 0; i < n; ++i) left[i] = products[i * n + i];
  const double least = n == 0 ? 0 : kLeastSquare * *std::max_element(left.begin(), left.end());
  while (std::accumulate(left.begin(), left.end(), 0.0) > may_leave) {
    const auto most = std::max_element(left.begin(), left.end());
    if (*most <= least) break;
    const auto pivot = static_cast<std::size_t>(most - left.begin());
    const float* line = picked.factor.data() + pivot * n;
    const auto root = static_cast<float>(std::sqrt(*most));
    for (std::size_t i = 0; i < n; ++i) {
      if (left[i] <= 0) continue;
      float* mine = picked.factor.data() + i * n;
      mine[picked.count] = i == pivot ? root : (products[pivot * n + i] - dot(mine, line, picked.count)) / root;
      left[i] = std::max(left[i] - static_cast<double>(mine[picked.count]) * mine[picked.count], 0.0);
    }
    left[pivot] = 0;
    ++picked.count;
  }
  return picked;
}

/// With Lᵀ L = F Fᵀ the columns of U = L F⁻ᵀ are orthonormal; n × picked.count.
std::vector<float> orthonormal(const Picked& picked, std::size_t n, const Kernels& kernels, std::size_t threads) {
  const std::size_t count = picked.count;
  std::vector<float> squares(count * count), basis(n * count);
  Gemm inner = gemm_of(count, count, n, false);
  inner.transpose_a = true;
  kernels.gemm(inner, picked.factor.data(), n, picked.factor.data(), n, squares.data(), count);
  const Cholesky factor(std::move(squares), count, kernels, threads, kLeastPivot);
  for_row_pieces(n, threads, [&](RowRange r) {
    float* mine = basis.data() + r.first * count;
    for (std::size_t i = r.first; i < r.last; ++i) {
      std::copy_n(picked.factor.data() + i * n, count, basis.data() + i * count);
    }
    factor.solve_half(mine, r.count());
  });
  return basis;
}

double power(std::span<const float> values) { return dot_double(values.data(), values.data(), values.size()); }

}  // namespace

ReducedColumns reduce_columns(std::span<const float> inputs, std::span<const float> targets, std::size_t n,
                              std::size_t fan_in, const Pixels& pixels, double may_lose, const Kernels& kernels,
                              std::size_t threads) {
  const Picked picked = pick(products(inputs, n, fan_in, pixels, kernels, threads), n, may_lose);
  const std::size_t rows = targets.size() / std::max<std::size_t>(n, 1);
  if (picked.count == 0) return {1, std::vector<float>(fan_in), std::vector<float>(rows), power(inputs)};
  const std::size_t count = picked.count;
  const std::vector<float> basis = orthonormal(picked, n, kernels, threads);

  ReducedColumns reduced{count, std::vector<float>(count * fan_in), std::vector<float>(rows * count), 0};
  for_row_pieces(count, threads, [&](RowRange r) {
    Gemm shape = gemm_of(r.count(), fan_in, n, false);
    shape.transpose_a = true;
    kernels.gemm(shape, basis.data() + r.first, count, inputs.data(), fan_in, reduced.inputs.data() + r.first * fan_in,
                 fan_in);
  });
  for_row_pieces(rows, threads, [&](RowRange r) {
    kernels.gemm(gemm_of(r.count(), count, n, false), targets.data() + r.first * n, n, basis.data(), count,
                 reduced.targets.data() + r.first * count, count);
  });
  reduced.lost = std::max(power(inputs) - power(reduced.inputs), 0.0);
  return reduced;
}

}  // namespace detent::finetune
