// A few neighbouring numbers, read and written as one.
#pragma once

#include "cuda/scale_blocks.h"

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

/// Whether rows, and blocks of scales, are made of whole packs of four.
DETENT_DEVICE bool fills_packs(std::size_t fan_in, const ScaleBlocks& blocks) {
  return fan_in % 4 == 0 && (blocks.blocks == 1 || blocks.size % 4 == 0);
}

/// Calls fn(row, first element) for all elements of a matrix in packs that lie within a row and a block of scales: of
/// four where these are made of whole ones, else of one. `fn` is called as fn.template operator()<n>(row, at).
template <class Block, class Fn>
DETENT_DEVICE void for_all_packs(Block& block, std::size_t rows, std::size_t fan_in, const ScaleBlocks& blocks,
                                 const Fn& fn) {
  // Matrices of weights have fewer than 2^32 elements (see check_size), and short divisions are faster.
  const auto width = static_cast<std::uint32_t>(fan_in);
  if (fills_packs(fan_in, blocks)) {
    for_all(block, rows * fan_in / 4,
            [&](std::size_t i) { fn.template operator()<4>(static_cast<std::uint32_t>(i) / (width / 4), 4 * i); });
  } else {
    for_all(block, rows * fan_in,
            [&](std::size_t i) { fn.template operator()<1>(static_cast<std::uint32_t>(i) / width, i); });
  }
}

}  // namespace detent::cuda
