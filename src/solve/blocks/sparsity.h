// 2:4 sparsity: of each four neighbours two are 0, as sparse tensor cores take them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "solve/algebra/cholesky.h"
#include "solve/algebra/kernels.h"
#include "solve/blocks/block_error.h"

namespace detent::solve {

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
