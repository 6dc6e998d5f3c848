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

// What methods share that go through the weights of a product block by block, with the factor of its Gram matrix.

inline constexpr std::size_t kLanes = 16;  // columns in one vector

/// A value of each of several columns.
struct alignas(64) Lanes {
  float at[kLanes];
};

/// The lower half of the matrix of Damping, its rows in this order.
std::vector<float> damped_matrix(const Gram& gram, const Damping& damping, const std::vector<std::size_t>& order);

/// How the weights at the places [first, last) make up best for those behind them: `change` with (change · L)_j =
/// -sums_j, where `sums` holds what the weights behind add to entry j of (Ŵ − W) L. Both begin at `first`; `sums` is
/// used up.
void propagate_error(const Cholesky& factor, std::size_t first, std::size_t last, Lanes* sums, Lanes* change);

// Columns of a weight while they are rounded, by their places in the factor of the Gram matrix.

/// Neighbouring places of the factor: a block of weights, or a piece of a long one.
struct BlockPart {
  std::size_t first = 0, last = 0;  // places
  std::size_t block = 0;
  bool opens = true;  // the first of its block to be rounded
};

/// Parts that are rounded together, before the error is carried on to all others.
struct BlockChunk {
  std::size_t first = 0, last = 0;  // places
  std::vector<BlockPart> parts;
};

/// Up to kColumnsTogether columns: the arrays hold so many values for each place.
struct BlockColumns {
  std::size_t count = 0;            // that there are
  std::size_t first = 0;            // the first of them in `made`
  quantization::BlockWeight& made;  // its scales and zero points are up to date; its integers are `steps`
  std::vector<float> weights;
  std::vector<float> steps;   // integers without their zero points
  std::vector<float> errors;  // (Ŵ − W) L
};

/// The grids of a block of several columns.
struct BlockGrids {
  Lanes scale, inverse, low, high;
};

BlockGrids grids_of(const quantization::BlockWeight& made, std::size_t first_column, std::size_t columns,
                    std::size_t block);

/// kLanes columns of an array that begins at place 0, from the one at `column` on, and back.
void copy_in(const float* values, std::size_t first, std::size_t last, std::size_t column, Lanes* lanes);
void copy_out(const Lanes* lanes, std::size_t first, std::size_t last, std::size_t column, float* values);

/// The integers of the columns, put where they belong: `order` tells which weight stands at each place.
void store_integers(const BlockColumns& columns, const std::vector<std::size_t>& order);

// 2:4 sparsity: of each four neighbours two are 0, as sparse tensor cores take them.

struct SparsityOptions {
  std::size_t refinements = 10;  // steps of conjugate gradients on what stays, one matrix product each
};

/// The columns with two of each four neighbours k, k + 1, k + 2, k + 3 (k a multiple of 4) set to 0 and the others
/// changed to make up for them. Rows after the last whole four stay dense.
///
/// Which two go is chosen four by four, those with inputs of the largest power first: the pair whose loss costs least
/// when all weights that are not decided yet may change, with the exact cost of the pair (optimal brain surgeon,
/// Hassibi and Stork 1993; SparseGPT, Frantar and Alistarh 2023, arXiv:2301.00774, takes the sum of two single costs).
/// Then the weights that stay are fitted together.
///
/// Memory: the factor of the Gram matrix, and for each thread six rows of kColumnsTogether columns. Threads change
/// nothing, nor how columns are divided into calls, so long as each but the last has a multiple of kColumnsTogether.
class TwoOfFour {
 public:
  TwoOfFour(const Gram& gram, const Damping& damping, const SparsityOptions& options, const Kernels& kernels,
            std::size_t threads);

  std::vector<float> prune(std::span<const float> columns) const;

 private:
  void prune_piece(std::span<const float> columns, std::span<float> pruned) const;
  void prune_lanes(std::span<const float> columns, std::size_t column, std::size_t first, std::size_t last,
                   std::span<const float> sums, std::span<float> difference) const;
  void refine(std::span<const float> columns, std::span<float> pruned) const;

  Gram gram_;
  const Damping& damping_;
  SparsityOptions options_;
  const Kernels& kernels_;
  std::size_t threads_;
  std::vector<std::size_t> order_;
  Cholesky factor_;
};

}  // namespace detent::solve
