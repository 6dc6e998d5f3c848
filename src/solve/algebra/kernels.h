// Matrix arithmetic: products by the plugin's kernels, sums of vectors, symmetric matrices and their Cholesky factor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace detent::solve {

// The heavy arithmetic of fine-tuning. What computes it is a plugin, loaded on first use: the libraries behind it are
// large, and plain calibration must not pay for them.

/// Row-major matrix product C = alpha · op(A) · op(B) + beta · C with op(A) of m × k, op(B) of k × n.
struct Gemm {
  bool transpose_a = false;
  bool transpose_b = false;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  float alpha = 1;
  float beta = 0;  // 0: what was in C does not matter
};

inline Gemm gemm_of(std::size_t m, std::size_t n, std::size_t k, bool transpose_b, float beta = 0) noexcept {
  Gemm shape;
  shape.transpose_b = transpose_b;
  shape.m = static_cast<std::int64_t>(m);
  shape.n = static_cast<std::int64_t>(n);
  shape.k = static_cast<std::int64_t>(k);
  shape.beta = beta;
  return shape;
}

/// All calls may come from several threads at once and each runs on the calling thread alone, so that a result never
/// depends on the number of threads. They throw device.
class Kernels {
 public:
  virtual ~Kernels() = default;
  virtual void gemm(const Gemm& shape, const float* a, std::size_t lda, const float* b, std::size_t ldb, float* c,
                    std::size_t ldc) const = 0;
};

/// The CPU's kernels. Their plugin is `plugin` if given, else $DETENT_CPU_PLUGIN, else libdetent_cpu.so beside the
/// executable (or in ../lib); what the first call in the process loaded stays. Throws device when it cannot be loaded.
const Kernels& cpu_kernels(const std::optional<std::filesystem::path>& plugin = {});

/// The plugin's only symbol. Null when the plugin is of another version; the object lives as long as the process.
using KernelsEntry = const Kernels*(int version);
inline constexpr const char* kKernelsEntryName = "detent_kernels";
/// Raised when anything above changes. Plugin and binary come from the same compiler.
inline constexpr int kKernelsVersion = 3;

// Sums in a fixed number of lanes: fast on any vector unit, and the same result on all of them.

namespace lanes {
inline constexpr std::size_t kCount = 16;

template <class Sum>
[[gnu::always_inline]] inline Sum total(const std::array<Sum, kCount>& parts) {
  std::array<Sum, kCount> p = parts;
  for (std::size_t half = kCount / 2; half > 0; half /= 2)
    for (std::size_t k = 0; k < half; ++k) p[k] += p[k + half];
  return p[0];
}

/// Sum over i of term(i).
template <class Sum, class Term>
[[gnu::always_inline]] inline Sum sum(std::size_t count, const Term& term) {
  std::array<Sum, kCount> parts{};
  std::size_t i = 0;
  for (; i + kCount <= count; i += kCount)
    for (std::size_t k = 0; k < kCount; ++k) parts[k] += term(i + k);
  for (; i < count; ++i) parts[i % kCount] += term(i);
  return total(parts);
}
}  // namespace lanes

float dot(const float* a, const float* b, std::size_t count);
/// The products and their sum in double.
double dot_double(const float* a, const float* b, std::size_t count);
double dot_double(const double* a, const float* b, std::size_t count);
double dot_double(const double* a, const double* b, std::size_t count);
double sum_double(const float* a, std::size_t count);
/// y += factor · x
void add_scaled(float* y, float factor, const float* x, std::size_t count);
void add_scaled(double* y, double factor, const float* x, std::size_t count);

/// The lower half of A Aᵀ for n rows of `size` values, into a matrix whose rows are `leading` apart.
void multiply_rows(const float* rows, std::size_t n, std::size_t size, float* out, std::size_t leading,
                   const Kernels& kernels, std::size_t threads);
/// Makes the upper half of an n × n matrix what the lower is.
void mirror(float* matrix, std::size_t n, std::size_t threads);

// The triangular factor of a symmetric matrix, and equations solved with it.

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

/// Which weight stands at each place of the factor: the last place has its turn first. Weights of one block stay
/// neighbours. By power: the blocks with the largest mean of `power` first, and in each the largest first; else as they
/// lie.
std::vector<std::size_t> rounding_order(const std::vector<double>& power, std::size_t block, bool by_power);

}  // namespace detent::solve
