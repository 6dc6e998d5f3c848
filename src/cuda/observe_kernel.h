// The observer's kernel: smallest and largest value, NaN and infinities, and the histogram by the float's own bits, in
// one read of the tensor. All that is kept is maxima and integer counts, so no order of threads shows in the result.
//
// The table of a value has 512 rows of 256 counters, too large for shared memory; adding each element to it in global
// memory would wait for other threads' additions. So a block keeps the rows that it meets in slots of shared memory,
// one slot for every kOctaves-th exponent of a sign: a run of that many neighbouring octaves never meets in a slot. Of
// two rows that do, the later one's elements go to the table directly. Exact zeros, often half of an activation, are
// counted by each thread for itself: all would else wait for one counter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "calibration/run_cell.h"
#include "cuda/simt.h"

#ifdef __CUDACC__
#define DETENT_UNROLL _Pragma("unroll")
#else
#define DETENT_UNROLL
#endif

namespace detent::cuda {

constexpr unsigned kOctaves = 20;  // of each sign in shared memory
constexpr unsigned kRowBins = 256;
constexpr unsigned kSlots = 2 * kOctaves;
constexpr unsigned kFreeSlot = 0xffffffffU;
constexpr unsigned kFirstNegativeRow = 256;
constexpr int kBitsBelowBin = 15;  // of a float below sign, exponent and 8 bits of mantissa

/// What a block's threads share.
struct ObservedExtremes {
  unsigned inverted_min;
  unsigned max;
  unsigned nan_count;
  unsigned inf_count;
  unsigned zeros;
};
struct ObservedRows {
  unsigned rows[kSlots];
  unsigned counts[kSlots * kRowBins];
};

/// As calibration::order_key() with the sign bit flipped: unsigned, in the order of the floats.
DETENT_DEVICE std::uint32_t ordered_bits(std::uint32_t bits) {
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// What a thread finds for itself.
struct ThreadFindings {
  std::uint32_t inverted_min = 0;
  std::uint32_t max = 0;
  unsigned nan_count = 0;
  unsigned inf_count = 0;
  unsigned zeros = 0;
};

DETENT_DEVICE void count_in_row(std::uint32_t bits, ObservedRows& shared, std::uint32_t* table) {
  const unsigned bin = bits >> kBitsBelowBin;
  const unsigned row = bin / kRowBins;
  const unsigned exponent = row % kFirstNegativeRow;
  const unsigned slot = exponent % kOctaves + (row >= kFirstNegativeRow ? kOctaves : 0);
  unsigned owner = read_shared(&shared.rows[slot]);
  if (owner == kFreeSlot) {
    owner = atomic_swap_if(&shared.rows[slot], kFreeSlot, row);
    if (owner == kFreeSlot) owner = row;
  }
  if (owner == row) {
    atomic_add(&shared.counts[slot * kRowBins + bin % kRowBins], 1U);
  } else {
    atomic_add(&table[bin], 1U);
  }
}

/// 16 bytes in one load.
struct alignas(16) FourFloats {
  std::uint32_t bits[4];
};

/// Elements before the first that stands at a multiple of 16 bytes.
DETENT_DEVICE std::size_t unaligned_head(const float* values, std::size_t count) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(values) / sizeof(float) % 4;
  const std::size_t head = (4 - past) % 4;
  return head < count ? head : count;
}

/// Counts of `count` floats, added to a cell and, with kHistogram, to a table of 512 x 256 counters. The block needs
/// shared memory of kObserveBytes.
template <bool kHistogram>
struct Observe {
  const float* values;
  std::size_t count;  // below 2^32, so that counters of 32 bits do
  calibration::RunCell* cell;
  std::uint32_t* table;  // null without kHistogram

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    auto& extremes = *block.template shared<ObservedExtremes>();
    // Behind them; a multiple of 4 bytes, as all of it is.
    auto& rows = *reinterpret_cast<ObservedRows*>(&extremes + 1);
    block.each([&](unsigned thread) { begin(thread, block.threads(), extremes, rows); });
    block.each([&](unsigned thread) {
      const std::size_t first = static_cast<std::size_t>(block.index()) * block.threads() + thread;
      scan(first, static_cast<std::size_t>(block.count()) * block.threads(), extremes, rows);
    });
    block.each([&](unsigned thread) { end(thread, block.threads(), extremes, rows); });
  }

 private:
  DETENT_DEVICE void begin(unsigned thread, unsigned threads, ObservedExtremes& extremes, ObservedRows& rows) const {
    if (thread == 0) extremes = ObservedExtremes{0, 0, 0, 0, 0};
    if constexpr (kHistogram) {
      for (unsigned i = thread; i < kSlots; i += threads) rows.rows[i] = kFreeSlot;
      for (unsigned i = thread; i < kSlots * kRowBins; i += threads) rows.counts[i] = 0;
    }
  }

  DETENT_DEVICE void scan(std::size_t first, std::size_t step, ObservedExtremes& extremes, ObservedRows& rows) const {
    ThreadFindings found;
    const auto* const words = reinterpret_cast<const std::uint32_t*>(values);
    const std::size_t head = unaligned_head(values, count);
    const std::size_t fours = (count - head) / 4;
    const std::size_t tail = head + 4 * fours;

    // Fewer than four on either side, and every grid has more threads.
    if (first < head) one(words[first], found, rows);
    if (first < count - tail) one(words[tail + first], found, rows);

    // Several loads are under way before the first is used.
    constexpr unsigned kAhead = 4;
    const auto* const four = reinterpret_cast<const FourFloats*>(words + head);
    std::size_t i = first;
    for (; i + (kAhead - 1) * step < fours; i += kAhead * step) {
      FourFloats loaded[kAhead];
      DETENT_UNROLL for (unsigned a = 0; a < kAhead; ++a) loaded[a] = four[i + a * step];
      DETENT_UNROLL for (unsigned a = 0; a < kAhead; ++a) all_four(loaded[a], found, rows);
    }
    for (; i < fours; i += step) all_four(four[i], found, rows);

    atomic_max(&extremes.inverted_min, found.inverted_min);
    atomic_max(&extremes.max, found.max);
    if (found.nan_count > 0) atomic_add(&extremes.nan_count, found.nan_count);
    if (found.inf_count > 0) atomic_add(&extremes.inf_count, found.inf_count);
    if (found.zeros > 0) atomic_add(&extremes.zeros, found.zeros);
  }

  DETENT_DEVICE void all_four(const FourFloats loaded, ThreadFindings& found, ObservedRows& rows) const {
    DETENT_UNROLL for (unsigned k = 0; k < 4; ++k) one(loaded.bits[k], found, rows);
  }

  DETENT_DEVICE void one(std::uint32_t bits, ThreadFindings& found, ObservedRows& rows) const {
    constexpr std::uint32_t kExponent = 0x7f800000U, kMantissa = 0x007fffffU;
    if ((bits & kExponent) == kExponent) {
      ++((bits & kMantissa) != 0 ? found.nan_count : found.inf_count);
      return;
    }
    const std::uint32_t ordered = ordered_bits(bits);
    found.max = ordered > found.max ? ordered : found.max;
    found.inverted_min = ~ordered > found.inverted_min ? ~ordered : found.inverted_min;
    if constexpr (kHistogram) {
      if ((bits << 1) == 0) {
        ++found.zeros;
      } else {
        count_in_row(bits, rows, table);
      }
    }
  }

  DETENT_DEVICE void end(unsigned thread, unsigned threads, const ObservedExtremes& extremes,
                         const ObservedRows& rows) const {
    if (thread == 0) {
      atomic_max(&cell->inverted_min, extremes.inverted_min);
      atomic_max(&cell->max, extremes.max);
      if (extremes.nan_count > 0) atomic_add(&cell->nan_count, extremes.nan_count);
      if (extremes.inf_count > 0) atomic_add(&cell->inf_count, extremes.inf_count);
      if (kHistogram && extremes.zeros > 0) atomic_add(&table[0], extremes.zeros);
    }
    if constexpr (kHistogram) {
      for (unsigned i = thread; i < kSlots * kRowBins; i += threads) {
        const unsigned found = rows.counts[i];
        if (found > 0) atomic_add(&table[rows.rows[i / kRowBins] * kRowBins + i % kRowBins], found);
      }
    }
  }
};

template <bool kHistogram>
inline constexpr std::size_t kObserveBytes = sizeof(ObservedExtremes) + (kHistogram ? sizeof(ObservedRows) : 0);
static_assert(kObserveBytes<true> <= 48 << 10);

/// Blocks for so many elements: enough to fill the device, and no more than there is work for, since each clears and
/// hands over its slots.
constexpr unsigned observe_blocks(std::size_t count, int multiprocessors) {
  constexpr std::size_t kElements = std::size_t{32} * kThreads;  // worth a block
  constexpr std::size_t kPerMultiprocessor = 3;                  // fit with their shared memory, and keep it busy
  const std::size_t wanted = (count + kElements - 1) / kElements;
  const std::size_t most = kPerMultiprocessor * static_cast<std::size_t>(multiprocessors);
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

}  // namespace detent::cuda
