// A few neighbouring numbers, read and written as one.
#pragma once

#include "cuda/simt.h"

namespace detent::cuda {

template <int n>
struct alignas(4 * n) Pack {
  float value[n];
};

/// `at` is aligned to the size of the pack.
template <int n>
DETENT_DEVICE Pack<n> load(const float* at) {
  return *reinterpret_cast<const Pack<n>*>(at);
}
template <int n>
DETENT_DEVICE void store(float* at, const Pack<n>& pack) {
  *reinterpret_cast<Pack<n>*>(at) = pack;
}

/// Calls fn(row, first element) for all elements of a matrix in packs that lie within a row: of four where rows are
/// made of whole ones, else of one. `fn` is called as fn.template operator()<n>(row, at).
template <class Block, class Fn>
DETENT_DEVICE void for_all_packs(Block& block, std::size_t rows, std::size_t columns, const Fn& fn) {
  // Matrices of weights have fewer than 2^32 elements (see check_size), and short divisions are faster.
  const auto width = static_cast<std::uint32_t>(columns);
  if (columns % 4 == 0) {
    for_all(block, rows * columns / 4,
            [&](std::size_t i) { fn.template operator()<4>(static_cast<std::uint32_t>(i) / (width / 4), 4 * i); });
  } else {
    for_all(block, rows * columns,
            [&](std::size_t i) { fn.template operator()<1>(static_cast<std::uint32_t>(i) / width, i); });
  }
}

}  // namespace detent::cuda
