// The triangular factor of a symmetric matrix, and equations solved with it.
#pragma once

#include <cstddef>
#include <vector>

#include "solve/algebra/kernels.h"

namespace detent::solve {

/// A = L Lᵀ for a symmetric positive matrix. A column that depends on those before it, so far as floats can tell, is
/// cut off from those after it and given the mean of the diagonal, so that singular matrices have a factor, too.
class Cholesky {
 public:
  /// `matrix` is n × n, row-major; only its lower half matters. `least_pivot`: what is left of a column's diagonal, as
  /// a share of the mean diagonal, at which it counts as dependent; the default is where floats hold only rounding.
  Cholesky(std::vector<float> matrix, std::size_t n, const Kernels& kernels, std::size_t threads,
           double least_pivot = 1e-5);

  std::size_t size() const noexcept { return n_; }
  const float* row(std::size_t i) const noexcept { return factor_.data() + i * n_; }
  float diagonal(std::size_t i) const noexcept { return factor_[i * n_ + i]; }
  /// X with X A = B for `rows` rows of n values each, in place.
  void solve(float* values, std::size_t rows) const;
  /// The first half of it: Z with Z Lᵀ = B.
  void solve_half(float* values, std::size_t rows) const;
  /// block = values[:, last…] · L[last…, first…last): `block` has `last - first` columns.
  void product_below(const float* values, std::size_t rows, std::size_t first, std::size_t last, float* block) const;

  // The same by columns: arrays hold a row of `columns` values for each of the n places.
  /// block = L[last…, first…last)ᵀ · values[last…]
  void columns_below(const float* values, std::size_t columns, std::size_t first, std::size_t last, float* block) const;
  /// block = L[first…last, …last) · values[…last)
  void rows_times(std::size_t first, std::size_t last, const float* values, std::size_t columns, float* block) const;
  /// values[…last) += L[first…last, …last)ᵀ · block
  void add_rows_transposed(std::size_t first, std::size_t last, const float* block, std::size_t columns,
                           float* values) const;

  static constexpr std::size_t kBlock = 128;

 private:
  void factor_diagonal(std::size_t first, std::size_t last, double mean, double least_pivot);
  void invert_diagonal(std::size_t first, std::size_t last);
  void solve_rows(std::size_t first, std::size_t last, std::size_t row, std::size_t row_end);
  /// block · inverse of the diagonal block's factor (or of its transpose), in place: products are faster than solving.
  void apply_inverse(std::size_t first, std::size_t last, bool transpose, float* block, std::size_t rows) const;

  std::vector<float> factor_;
  std::vector<float> inverse_;  // of the diagonal blocks, n × kBlock
  std::vector<char> dependent_;
  std::size_t n_;
  const Kernels& kernels_;
};

}  // namespace detent::solve
