// The squared error of each row of a Gram form as a quadratic in the row's weights alone: the bias is either fixed, or
// eliminated, being the best one for any weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/parallel.h"
#include "solve/algebra/kernels.h"
#include "solve/layers/problem.h"

namespace detent::solve {

struct RowRange {
  std::size_t first = 0;
  std::size_t last = 0;
  std::size_t count() const noexcept { return last - first; }
};

/// Divides rows into pieces, whatever the number of threads. Rows are independent problems, so each piece can be solved
/// by itself. A piece lies within one group, or consists of whole groups.
std::vector<RowRange> row_ranges(std::size_t rows, std::size_t groups, std::size_t fan_in);
/// Pieces of at most 64 of `rows`.
std::vector<RowRange> row_pieces(std::size_t rows);
/// Calls fn(range) for each of them, on several threads.
template <class Fn>
void for_row_pieces(std::size_t rows, std::size_t threads, const Fn& fn) {
  const auto pieces = row_pieces(rows);
  parallel_for(pieces.size(), threads, [&](std::size_t i) { fn(pieces[i]); });
}

/// What integers of these rows stand for; `integers` begin at the first of them.
std::vector<float> dequantized(const QuantizedWeights& weights, RowRange rows, const std::int32_t* integers);

/// error(w) = w A wᵀ − 2 w cᵀ + constant, summed over all positions. With σ = sum of x, τ = sum of y, N positions:
///   fixed bias b:  A = G           c = C − b σ      constant = |y|² − 2 b τ + N b²
///   best bias:     A = G − σσᵀ/N   c = C − τ σ/N    constant = |y|² − τ²/N          (b = (τ − w σ)/N)
class Quadratic {
 public:
  /// Refers to the form; `bias` may be empty. Throws internal when the sizes do not fit.
  Quadratic(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias, bool best_bias);

  std::size_t fan_in() const noexcept { return fan_in_; }
  std::size_t group_of(std::size_t row) const noexcept { return row / group_rows_; }
  std::size_t group_rows() const noexcept { return group_rows_; }
  double positions() const noexcept { return positions_; }

  /// out = values · A for rows of the matrix: `values` and `out` begin at the first of the range.
  void product(const Kernels& kernels, RowRange rows, const float* values, float* out) const;
  /// out = values · A − c: half the gradient of the error.
  void residual(const Kernels& kernels, RowRange rows, const float* values, float* out) const;
  /// out += factor · (row j of A), from weight j on: what a sweep in the order of the weights still reads.
  void add_row(std::size_t group, std::size_t j, float factor, float* out) const;
  float diagonal(std::size_t group, std::size_t j) const;
  /// Mean square of the inputs of a group, about their mean where the bias is the best one.
  double input_power(std::size_t group) const noexcept { return input_power_[group]; }
  /// out = c of rows.
  void linear(RowRange rows, float* out) const;
  double constant(std::size_t row) const noexcept { return constant_[row]; }
  /// Row i of A of a group.
  void row(std::size_t group, std::size_t i, float* out) const;

  /// Errors of rows for these integers (of all rows), in double.
  std::vector<double> errors(const QuantizedWeights& weights, std::span<const std::int32_t> integers,
                             RowRange rows) const;

 private:
  const GramForm& form_;
  bool best_bias_;
  std::size_t fan_in_;
  std::size_t group_rows_;
  double positions_;
  std::vector<float> input_sum_;  // σ, as float for vector code
  std::vector<double> linear_;    // for each row the factor of σ in c: b or τ/N
  std::vector<double> constant_;
  std::vector<double> input_power_;
};

}  // namespace detent::solve
