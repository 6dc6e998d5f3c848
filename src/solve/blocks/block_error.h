// The error that rounding a product's weights makes in its results, from sums over samples.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

#include "quantization/blocks/blocks.h"
#include "solve/algebra/kernels.h"

namespace detent::solve {

/// Sums of x xᵀ over positions, x being the inputs of a product x·W: rows × rows, symmetric, both halves filled.
struct Gram {
  std::span<const float> values;
  std::size_t rows = 0;
  std::uint64_t positions = 0;  // that were summed
  /// Where given, the sums stand for inputs that are divided by these.
  std::span<const float> divisors = {};

  float at(std::size_t i, std::size_t j) const noexcept {
    const float value = values[i * rows + j];
    return divisors.empty() ? value : value / (divisors[i] * divisors[j]);
  }
};

/// The inputs themselves, in a row for each position: less to keep and to multiply with where positions are few.
struct InputRows {
  std::span<const float> values;
  std::size_t rows = 0;  // of the weight
  std::uint64_t positions = 0;
  std::span<const float> divisors = {};  // as in Gram
};

/// What errors are told by.
using GramOrInputRows = std::variant<Gram, InputRows>;

/// The matrix A that stands for a Gram matrix G while weights are fitted, so that they do not follow the chance in a
/// few samples: A_ij = keep · G_ij, A_ii = keep · G_ii + more_i.
///
/// The off-diagonal part shrinks as far as is best for correlations measured at so many positions (Schäfer and Strimmer
/// 2005, doi:10.2202/1544-6115.1175: λ = Σ var(r_ij) / Σ r_ij², with the variance of a normal sample's correlation);
/// to nothing where they are not above chance, hardly at all where positions are many. The diagonal grows by `share` of
/// itself, and a little of its mean, so that inputs that are always 0 have an entry.
struct Damping {
  Damping(const Gram& gram, double share);

  float keep = 1;
  std::vector<float> more;
  std::vector<float> diagonal;  // of A: how much an error of each weight counts by itself
};

/// A share for Damping: 8 / √positions, at most 0.5. Measured on the products of a sentence encoder with 400 to 20000
/// positions, the best share falls from 0.6 to 0.03, and no error is more than 1 % above that of the best.
double usual_damping(std::uint64_t positions);

/// Columns that products work on together: results do not depend on how columns are divided into calls, so long as each
/// call but the last has a multiple of so many.
inline constexpr std::size_t kColumnsTogether = 128;

/// For each column the sum over positions of (x·w - x·ŵ)², x being the inputs, w the column and ŵ what is stored of it.
/// Memory: for each thread two rows of kColumnsTogether columns.
std::vector<double> column_errors(const GramOrInputRows& judge, std::span<const float> columns,
                                  const quantization::BlockWeight& weight, const Kernels& kernels, std::size_t threads);

/// Ŵ − W of the columns [first, first + count), in `rows` floats each.
void stored_difference(std::span<const float> columns, const quantization::BlockWeight& weight, std::size_t first,
                       std::size_t count, float* difference);

}  // namespace detent::solve
