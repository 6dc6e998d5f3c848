// What methods share that go through the weights of a product block by block, with the factor of its Gram matrix.
#pragma once

#include <cstddef>
#include <vector>

#include "solve/algebra/cholesky.h"
#include "solve/blocks/block_error.h"

namespace detent::solve {

inline constexpr std::size_t kLanes = 16;  // columns in one vector

/// A value of each of several columns.
struct alignas(64) Lanes {
  float at[kLanes];
};

/// Which weight stands at each place of the factor: the last place has its turn first. Weights of one block stay
/// neighbours. By power: the blocks with the largest mean of `power` first, and in each the largest first; else as they
/// lie.
std::vector<std::size_t> rounding_order(const std::vector<float>& power, std::size_t block, bool by_power);

/// The lower half of the matrix of Damping, its rows in this order.
std::vector<float> damped_matrix(const Gram& gram, const Damping& damping, const std::vector<std::size_t>& order);

/// How the weights at the places [first, last) make up best for those behind them: `change` with (change · L)_j =
/// -sums_j, where `sums` holds what the weights behind add to entry j of (Ŵ − W) L. Both begin at `first`; `sums` is
/// used up.
void propagate_error(const Cholesky& factor, std::size_t first, std::size_t last, Lanes* sums, Lanes* change);

/// sums[i] += change * line[i] for i below `count`.
void add_outer(const Lanes& change, const float* line, std::size_t count, Lanes* sums);

}  // namespace detent::solve
