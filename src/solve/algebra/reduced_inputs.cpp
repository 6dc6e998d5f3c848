#include "solve/algebra/reduced_inputs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/numbers.h"
#include "solve/algebra/quadratic.h"

namespace detent::solve {
namespace {

constexpr double kLeastPivot = 1e-7;   // of a factor's mean diagonal: what was picked is independent
constexpr double kLeastSquare = 1e-6;  // of the largest input: what is left below is rounding

/// X Xᵀ, of n × n.
std::vector<float> products(const InputMatrix& x, const Kernels& kernels, std::size_t threads) {
  if (x.pixels != nullptr) return products(*x.pixels, kernels, threads);
  std::vector<float> all(x.n * x.n);
  multiply_rows(x.inputs.data(), x.n, x.fan_in, all.data(), x.n, kernels, threads);
  mirror(all.data(), x.n, threads);
  return all;
}

// Uᵀ X for U of [positions, count].
std::vector<float> combine(const Pixels& pixels, const std::vector<float>& basis, std::size_t count,
                           const Kernels& kernels, std::size_t threads) {
  const std::size_t fan_in = pixels.channels * pixels.elements;
  std::vector<float> out(count * fan_in), part(count * pixels.channels);
  for (std::size_t k = 0; k < pixels.elements; ++k) {
    const std::vector<float> seen = pixels.seen_by(k);
    for_row_pieces(count, threads, [&](RowRange r) {
      Gemm shape = gemm_of(r.count(), pixels.channels, pixels.positions(), false);
      shape.transpose_a = true;
      kernels.gemm(shape, basis.data() + r.first, count, seen.data(), pixels.channels,
                   part.data() + r.first * pixels.channels, pixels.channels);
      for (std::size_t i = r.first * pixels.channels; i < r.last * pixels.channels; ++i) {
        out[i * pixels.elements + k] = part[i];
      }
    });
  }
  return out;
}

std::vector<float> combine(const InputMatrix& x, const std::vector<float>& basis, std::size_t count,
                           const Kernels& kernels, std::size_t threads) {
  if (x.pixels != nullptr) return combine(*x.pixels, basis, count, kernels, threads);
  std::vector<float> out(count * x.fan_in);
  for_row_pieces(count, threads, [&](RowRange r) {
    Gemm shape = gemm_of(r.count(), x.fan_in, x.n, false);
    shape.transpose_a = true;
    kernels.gemm(shape, basis.data() + r.first, count, x.inputs.data(), x.fan_in, out.data() + r.first * x.fan_in,
                 x.fan_in);
  });
  return out;
}

struct PartialFactor {
  std::size_t count = 0;
  std::size_t room = 0;       // for as many
  std::vector<float> factor;  // L with L Lᵀ ≈ the matrix: row i begins at i · room
  double left = 0;            // of the diagonal's sum
};

/// Of a matrix of n × n, until at most `may_leave` is left or `most` are picked.
PartialFactor pivoted_cholesky(std::span<const float> matrix, std::size_t n, double may_leave, std::size_t most) {
  PartialFactor picked{0, most, std::vector<float>(n * most), 0};
  std::vector<double> left(n);
  for (std::size_t i = 0; i < n; ++i) left[i] = matrix[i * n + i];
  const double least = n == 0 ? 0 : kLeastSquare * *std::max_element(left.begin(), left.end());
  while ((picked.left = std::accumulate(left.begin(), left.end(), 0.0)) > may_leave && picked.count < most) {
    const auto largest = std::max_element(left.begin(), left.end());
    if (*largest <= least) break;
    const auto pivot = static_cast<std::size_t>(largest - left.begin());
    const float* line = picked.factor.data() + pivot * most;
    const auto root = static_cast<float>(std::sqrt(*largest));
    for (std::size_t i = 0; i < n; ++i) {
      if (left[i] <= 0) continue;
      float* mine = picked.factor.data() + i * most;
      mine[picked.count] = i == pivot ? root : (matrix[pivot * n + i] - dot(mine, line, picked.count)) / root;
      left[i] = std::max(left[i] - static_cast<double>(mine[picked.count]) * mine[picked.count], 0.0);
    }
    left[pivot] = 0;
    ++picked.count;
  }
  return picked;
}

/// With Lᵀ L = F Fᵀ the columns of U = L F⁻ᵀ are orthonormal; n × picked.count.
std::vector<float> orthonormal(const PartialFactor& picked, std::size_t n, const Kernels& kernels,
                               std::size_t threads) {
  const std::size_t count = picked.count;
  std::vector<float> squares(count * count), basis(n * count);
  Gemm inner = gemm_of(count, count, n, false);
  inner.transpose_a = true;
  kernels.gemm(inner, picked.factor.data(), picked.room, picked.factor.data(), picked.room, squares.data(), count);
  const Cholesky factor(std::move(squares), count, kernels, threads, kLeastPivot);
  for_row_pieces(n, threads, [&](RowRange r) {
    float* mine = basis.data() + r.first * count;
    for (std::size_t i = r.first; i < r.last; ++i) {
      std::copy_n(picked.factor.data() + i * picked.room, count, basis.data() + i * count);
    }
    factor.solve_half(mine, r.count());
  });
  return basis;
}

}  // namespace

std::vector<double> input_powers(const InputMatrix& x) {
  if (x.pixels != nullptr) return input_powers(*x.pixels);
  std::vector<double> power(x.fan_in);
  for (std::size_t c = 0; c < x.n; ++c) {
    for (std::size_t j = 0; j < x.fan_in; ++j) {
      const double value = x.inputs[c * x.fan_in + j];
      power[j] += value * value;
    }
  }
  return power;
}

ReducedInputs reduce_inputs(const InputMatrix& x, std::span<const float> targets, std::span<const double> power,
                            double may_lose, const Kernels& kernels, std::size_t threads) {
  const std::size_t n = x.n, rows = targets.size() / std::max<std::size_t>(n, 1);
  const double total = std::accumulate(power.begin(), power.end(), 0.0);
  const PartialFactor picked = pivoted_cholesky(products(x, kernels, threads), n, may_lose, n);
  if (picked.count == 0) return {1, std::vector<float>(x.fan_in), std::vector<float>(rows), total};
  const std::size_t count = picked.count;
  const std::vector<float> basis = orthonormal(picked, n, kernels, threads);

  ReducedInputs reduced{count, combine(x, basis, count, kernels, threads), std::vector<float>(rows * count), 0};
  for_row_pieces(rows, threads, [&](RowRange r) {
    kernels.gemm(gemm_of(r.count(), count, n, false), targets.data() + r.first * n, n, basis.data(), count,
                 reduced.targets.data() + r.first * count, count);
  });
  const double kept = dot_double(reduced.inputs.data(), reduced.inputs.data(), reduced.inputs.size());
  reduced.lost = std::max(total - kept, 0.0);
  return reduced;
}

std::optional<ReducedInputs> inputs_of_gram(std::span<const float> gram, std::size_t fan_in, double may_lose,
                                            std::size_t most) {
  const PartialFactor picked = pivoted_cholesky(gram, fan_in, may_lose, most);
  if (picked.left > may_lose) return {};
  const std::size_t count = std::max<std::size_t>(picked.count, 1);  // what is left may be all
  ReducedInputs reduced{count, std::vector<float>(count * fan_in), {}, picked.left};
  for (std::size_t j = 0; j < fan_in; ++j) {
    for (std::size_t c = 0; c < picked.count; ++c) reduced.inputs[c * fan_in + j] = picked.factor[j * most + c];
  }
  return reduced;
}

namespace {

DETENT_VECTOR_CLONES
void add_picked(float* to, const float* from, const std::uint32_t* which, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) to[i] += from[which[i]];
}

}  // namespace

std::vector<float> Pixels::seen_by(std::size_t element) const {
  std::vector<float> seen(positions() * channels);
  for (std::size_t c = 0; c < positions(); ++c) {
    const std::uint32_t pixel = behind[element * positions() + c];
    if (pixel != 0) std::copy_n(values.data() + (pixel - 1) * channels, channels, seen.data() + c * channels);
  }
  return seen;
}

std::vector<float> im2col(const Pixels& pixels) {
  const std::size_t fan_in = pixels.channels * pixels.elements;
  std::vector<float> inputs(pixels.positions() * fan_in);
  for (std::size_t k = 0; k < pixels.elements; ++k) {
    const std::vector<float> seen = pixels.seen_by(k);
    for (std::size_t i = 0; i < seen.size(); ++i) inputs[i * pixels.elements + k] = seen[i];
  }
  return inputs;
}

std::vector<double> input_powers(const Pixels& pixels) {
  std::vector<double> power(pixels.channels * pixels.elements), of_element(pixels.channels);
  for (std::size_t k = 0; k < pixels.elements; ++k) {
    const std::vector<float> seen = pixels.seen_by(k);
    std::fill(of_element.begin(), of_element.end(), 0.0);
    for (std::size_t at = 0; at < seen.size(); at += pixels.channels) {
      for (std::size_t c = 0; c < pixels.channels; ++c) {
        const double x = seen[at + c];
        of_element[c] += x * x;
      }
    }
    for (std::size_t c = 0; c < pixels.channels; ++c) power[c * pixels.elements + k] = of_element[c];
  }
  return power;
}

std::vector<float> products(const Pixels& pixels, const Kernels& kernels, std::size_t threads) {
  const std::size_t size = pixels.count + 1, n = pixels.positions();
  std::vector<float> each(size * size), all(n * n);  // row and column 0 are of the outside
  multiply_rows(pixels.values.data(), pixels.count, pixels.channels, each.data() + size + 1, size, kernels, threads);
  mirror(each.data(), size, threads);
  for_row_pieces(n, threads, [&](RowRange rows) {
    for (std::size_t i = rows.first; i < rows.last; ++i) {
      for (std::size_t k = 0; k < pixels.elements; ++k) {
        const std::uint32_t* behind = pixels.behind.data() + k * n;
        add_picked(all.data() + i * n, each.data() + behind[i] * size, behind, i + 1);
      }
    }
  });
  mirror(all.data(), n, threads);
  return all;
}

}  // namespace detent::solve
