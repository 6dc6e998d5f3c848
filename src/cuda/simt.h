// How kernels are written here: once, for a block of threads that waits for itself after each step, so that the same
// source runs on a GPU and, thread after thread, on a host in tests.
//
// A kernel is a struct of plain numbers and device addresses with
//   template <class Block> DETENT_DEVICE void operator()(Block& block) const;
// where block.each(fn) calls fn(thread) for every thread of the block and then waits for all of them. What threads tell
// each other goes through block.shared<T>() or global memory, never through variables outside of fn.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define DETENT_DEVICE __device__ inline
#else
#define DETENT_DEVICE inline
#endif

namespace detent::cuda {

/// Threads of a block, everywhere: sums that are made by blocks then have one order.
inline constexpr unsigned kThreads = 256;

/// Blocks for work of so many items, of which each thread takes one after the other. It depends on nothing else, and so
/// do sums of blocks.
constexpr unsigned blocks_for(std::size_t items, std::size_t most = 2048) noexcept {
  const std::size_t blocks = (items + kThreads - 1) / kThreads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

/// Calls fn(i) for each i in [0, count), spread over all threads of all blocks: neighbours go together.
template <class Block, class Fn>
DETENT_DEVICE void for_all(Block& block, std::size_t count, const Fn& fn) {
  block.each([&](unsigned thread) {
    const std::size_t step = static_cast<std::size_t>(block.count()) * block.threads();
    for (std::size_t i = static_cast<std::size_t>(block.index()) * block.threads() + thread; i < count; i += step)
      fn(i);
  });
}

/// Adds what each thread of a block has, in double and always in the same order; `use(sum)` is called by one thread.
/// The block needs shared memory of kThreads doubles.
template <class Block, class Part, class Use>
DETENT_DEVICE void sum_of_threads(Block& block, const Part& part, const Use& use) {
  double* const parts = block.template shared<double>();
  block.each([&](unsigned thread) { parts[thread] = part(thread); });
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    block.each([&](unsigned thread) {
      if (thread < half) parts[thread] += parts[thread + half];
    });
  }
  block.each([&](unsigned thread) {
    if (thread == 0) use(parts[0]);
  });
}

/// The sum over i in [0, count) of term(i) by one block.
template <class Block, class Term, class Use>
DETENT_DEVICE void block_sum(Block& block, std::size_t count, const Term& term, const Use& use) {
  sum_of_threads(
      block,
      [&](unsigned thread) {
        double sum = 0;
        for (std::size_t i = thread; i < count; i += block.threads()) sum += term(i);
        return sum;
      },
      use);
}

/// The same by all blocks: each calls use() for the terms that are its own.
template <class Block, class Term, class Use>
DETENT_DEVICE void grid_sum(Block& block, std::size_t count, const Term& term, const Use& use) {
  sum_of_threads(
      block,
      [&](unsigned thread) {
        double sum = 0;
        const std::size_t step = static_cast<std::size_t>(block.count()) * block.threads();
        std::size_t i = static_cast<std::size_t>(block.index()) * block.threads() + thread;
        for (; i < count; i += step) sum += term(i);
        return sum;
      },
      use);
}
inline constexpr std::size_t kSumBytes = kThreads * sizeof(double);

// Additions and comparisons that several threads of a device do at a time. On a host one thread runs after another, so
// they need not be atomic there.

DETENT_DEVICE void atomic_add(unsigned* to, unsigned value) {
#ifdef __CUDACC__
  atomicAdd(to, value);
#else
  *to += value;
#endif
}

DETENT_DEVICE void atomic_add(unsigned long long* to, unsigned long long value) {
#ifdef __CUDACC__
  atomicAdd(to, value);
#else
  *to += value;
#endif
}

DETENT_DEVICE void atomic_max(unsigned* to, unsigned value) {
#ifdef __CUDACC__
  atomicMax(to, value);
#else
  *to = value > *to ? value : *to;
#endif
}

/// What stood there; replaced by `value` where that was `expected`.
DETENT_DEVICE unsigned atomic_swap_if(unsigned* at, unsigned expected, unsigned value) {
#ifdef __CUDACC__
  return atomicCAS(at, expected, value);
#else
  const unsigned before = *at;
  if (before == expected) *at = value;
  return before;
#endif
}

/// Another thread of the block may be writing it.
DETENT_DEVICE unsigned read_shared(const unsigned* at) { return *static_cast<const volatile unsigned*>(at); }

/// The upper half of a float.
struct Bfloat16 {
  std::uint16_t bits;
};

/// Half to even; NaN stays NaN.
DETENT_DEVICE Bfloat16 to_bfloat16(float value) {
  union {
    float value;
    std::uint32_t bits;
  } word{value};
  if ((word.bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>((word.bits >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((word.bits + 0x7fffU + ((word.bits >> 16) & 1U)) >> 16)};
}

/// to[i] = from[i]
struct ToBfloat16 {
  const float* from;
  Bfloat16* to;
  std::size_t count;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, count, [&](std::size_t i) { to[i] = to_bfloat16(from[i]); });
  }
};

// Where kernels find the numbers of a weight's block of scales (see solve/layers/problem.h).

/// Arrays of numbers that blocks of scales have are [rows, blocks].
struct ScaleBlocks {
  std::uint32_t blocks = 1;  // of a row
  std::uint32_t size = 0;    // weights of a block

  DETENT_DEVICE std::size_t at(std::size_t row, std::size_t weight) const {
    return blocks == 1 ? row : row * blocks + static_cast<std::uint32_t>(weight) / size;
  }
};

/// A few neighbouring numbers, read and written as one.
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
