// The inner step of GPTQ as the nearest-plane method (gptq.cpp): a block of weights, rounded one after another.
#pragma once

#include <cstddef>
#include <cstdint>

#include "solve/algebra/cholesky.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/patches.h"
#include "solve/layers/problem.h"

namespace detent::solve {

/// A value for each row and each weight of a block; rows are `stride` apart.
template <class T>
struct BlockOf {
  T* values = nullptr;
  std::size_t stride = 0;
  T* row(std::size_t r) const noexcept { return values + r * stride; }
};

/// Rounds the weights `block` of some rows, the last of them first, each so that its entry of (Ŵ − W) L becomes
/// smallest, and puts Ŵ − W into `difference`. `sums` holds what the weights behind the block add to its entries, and
/// the entries afterwards. `order`: which weight of its row
/// stands at each place of the factor.
void round_block(const QuantizedWeights& weights, RowRange rows, const Cholesky& factor, Patches::Range block,
                 const std::size_t* order, BlockOf<const float> wanted, BlockOf<float> sums, BlockOf<float> difference,
                 BlockOf<std::int32_t> integers);

}  // namespace detent::solve
