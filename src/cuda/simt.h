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

}  // namespace detent::cuda
