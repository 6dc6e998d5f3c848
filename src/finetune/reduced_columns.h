// Fewer columns that say nearly the same: what many positions of few samples show repeats itself.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "finetune/kernels.h"
#include "finetune/pixels.h"

namespace detent::finetune {

/// n columns as they are, n × fan_in, or the pixels that they are made of.
struct ColumnsOf {
  std::size_t n = 0;
  std::size_t fan_in = 0;
  std::span<const float> inputs;  // empty where there are pixels
  const Pixels* pixels = nullptr;
};

/// For each weight, the sum of the squares of what it is multiplied with.
std::vector<double> powers(const ColumnsOf& columns);

/// Z = Uᵀ X in place of the columns X (n × fan_in), and Uᵀ Y in place of the targets, where U has a few orthonormal
/// columns of n. Squared differences X w − y only become smaller: by a constant, and by what was lost times |w|² at
/// most.
struct ReducedColumns {
  std::size_t count = 0;
  std::vector<float> inputs;   // count × fan_in
  std::vector<float> targets;  // rows × count, or empty as given
  double lost = 0;             // of the sum of all squared inputs: at most `may_lose`
};

/// U spans the products of all columns with some of them, which are picked one after the other: each time the column
/// that those before it explain least, until what they leave of the squared inputs is at most `may_lose` (pivoted
/// Cholesky of X Xᵀ: Harbrecht, Peters and Schneider 2012, "On the low-rank approximation by the pivoted Cholesky
/// decomposition"). `targets` is rows × n or empty, `power` is powers(). The result is the same for any number of
/// threads.
ReducedColumns reduce_columns(const ColumnsOf& columns, std::span<const float> targets, std::span<const double> power,
                              double may_lose, const Kernels& kernels, std::size_t threads);

/// The same where only the columns' Gram matrix is left, fan_in × fan_in: with Lᵀ its partial factor, the rows of Lᵀ
/// are columns that have nearly this matrix. Nothing where there would be more than `most`.
std::optional<ReducedColumns> columns_of_gram(std::span<const float> gram, std::size_t fan_in, double may_lose,
                                              std::size_t most);

}  // namespace detent::finetune
