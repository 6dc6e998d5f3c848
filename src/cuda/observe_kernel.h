// The observer's kernel: smallest and largest value, NaN and infinities, and the histogram by the float's own bits, in
// one read of the tensor. All that is kept is maxima and integer counts, so no order of threads shows in the result.
//
// A block runs three phases with a barrier between each two: observe_begin, observe_scan, observe_end. Tests run the
// same phases on the host.
//
// The table of a value has 512 rows of 256 counters, too large for shared memory; adding each element to it in global
// memory would wait for other threads' additions. So a block keeps the rows that it meets in slots of shared memory,
// one slot for every kOctaves-th exponent of a sign: a run of that many neighbouring octaves never meets in a slot. Of
// two rows that do, the later one's elements go to the table directly. Exact zeros, often half of an activation, are
// counted by each thread for itself: all would else wait for one counter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "calibrate/run_cell.h"
#include "cuda/host_device.h"

namespace detent::cuda {

constexpr unsigned kObserveThreads = 512;
constexpr unsigned kOctaves = 20;  // of each sign in shared memory
constexpr unsigned kRowBins = 256;
constexpr unsigned kSlots = 2 * kOctaves;
constexpr unsigned kFreeSlot = 0xffffffffU;
constexpr unsigned kFirstNegativeRow = 256;
constexpr int kBitsBelowBin = 15;  // of a float below sign, exponent and 8 bits of mantissa

struct ObserveArguments {
  const float* values;
  std::size_t count;  // below 2^32, so that counters of 32 bits do
  calibration::RunCell* cell;
  std::uint32_t* table;  // null: extremes and counts of NaN and infinities only
};

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

/// Where a thread is.
struct ThreadPlace {
  unsigned block, blocks, thread, threads;
};

/// As calibration::order_key() with the sign bit flipped: unsigned, in the order of the floats.
DETENT_HOST_DEVICE std::uint32_t ordered_bits(std::uint32_t bits) {
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

DETENT_HOST_DEVICE void count_in_row(std::uint32_t bits, ObservedRows& shared, std::uint32_t* table) {
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

template <bool kHistogram>
DETENT_HOST_DEVICE void observe_one(std::uint32_t bits, ThreadFindings& found, ObservedRows* shared,
                                    std::uint32_t* table) {
  constexpr std::uint32_t kExponent = 0x7f800000U;
  if ((bits & kExponent) == kExponent) {
    if ((bits & ~(kExponent | 0x80000000U)) != 0) {
      ++found.nan_count;
    } else {
      ++found.inf_count;
    }
    return;
  }
  const std::uint32_t ordered = ordered_bits(bits);
  found.max = ordered > found.max ? ordered : found.max;
  found.inverted_min = ~ordered > found.inverted_min ? ~ordered : found.inverted_min;
  if constexpr (kHistogram) {
    if ((bits << 1) == 0) {
      ++found.zeros;
    } else {
      count_in_row(bits, *shared, table);
    }
  }
}

DETENT_HOST_DEVICE void observe_begin(const ThreadPlace& at, ObservedExtremes& extremes, ObservedRows* rows) {
  if (at.thread == 0) extremes = ObservedExtremes{0, 0, 0, 0, 0};
  if (rows == nullptr) return;
  for (unsigned i = at.thread; i < kSlots; i += at.threads) rows->rows[i] = kFreeSlot;
  for (unsigned i = at.thread; i < kSlots * kRowBins; i += at.threads) rows->counts[i] = 0;
}

/// 16 bytes in one load.
struct alignas(16) FourFloats {
  std::uint32_t bits[4];
};

/// Elements before the first that stands at a multiple of 16 bytes.
DETENT_HOST_DEVICE std::size_t unaligned_head(const float* values, std::size_t count) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(values) / sizeof(float) % 4;
  const std::size_t head = (4 - past) % 4;
  return head < count ? head : count;
}

template <bool kHistogram>
DETENT_HOST_DEVICE void observe_scan(const ObserveArguments& of, const ThreadPlace& at, ObservedExtremes& extremes,
                                     ObservedRows* rows) {
  ThreadFindings found;
  const auto* const words = reinterpret_cast<const std::uint32_t*>(of.values);
  const std::size_t first = static_cast<std::size_t>(at.block) * at.threads + at.thread;
  const std::size_t step = static_cast<std::size_t>(at.blocks) * at.threads;
  const std::size_t head = unaligned_head(of.values, of.count);
  const std::size_t fours = (of.count - head) / 4;
  const std::size_t tail = head + 4 * fours;

  // Fewer than four on either side, and every grid has more threads.
  if (first < head) observe_one<kHistogram>(words[first], found, rows, of.table);
  if (first < of.count - tail) observe_one<kHistogram>(words[tail + first], found, rows, of.table);

  // Several loads are under way before the first is used.
  constexpr unsigned kAhead = 4;
  const auto* const four = reinterpret_cast<const FourFloats*>(words + head);
  std::size_t i = first;
  for (; i + (kAhead - 1) * step < fours; i += kAhead * step) {
    FourFloats loaded[kAhead];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (unsigned a = 0; a < kAhead; ++a) loaded[a] = four[i + a * step];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (unsigned a = 0; a < kAhead; ++a) {
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (unsigned k = 0; k < 4; ++k) observe_one<kHistogram>(loaded[a].bits[k], found, rows, of.table);
    }
  }
  for (; i < fours; i += step) {
    const FourFloats loaded = four[i];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (unsigned k = 0; k < 4; ++k) observe_one<kHistogram>(loaded.bits[k], found, rows, of.table);
  }

  atomic_max(&extremes.inverted_min, found.inverted_min);
  atomic_max(&extremes.max, found.max);
  if (found.nan_count > 0) atomic_add(&extremes.nan_count, found.nan_count);
  if (found.inf_count > 0) atomic_add(&extremes.inf_count, found.inf_count);
  if (found.zeros > 0) atomic_add(&extremes.zeros, found.zeros);
}

DETENT_HOST_DEVICE void observe_end(const ObserveArguments& of, const ThreadPlace& at, const ObservedExtremes& extremes,
                                    const ObservedRows* rows) {
  if (at.thread == 0) {
    atomic_max(&of.cell->inverted_min, extremes.inverted_min);
    atomic_max(&of.cell->max, extremes.max);
    if (extremes.nan_count > 0) atomic_add(&of.cell->nan_count, extremes.nan_count);
    if (extremes.inf_count > 0) atomic_add(&of.cell->inf_count, extremes.inf_count);
    if (rows != nullptr && extremes.zeros > 0) atomic_add(&of.table[0], extremes.zeros);
  }
  if (rows == nullptr) return;
  for (unsigned i = at.thread; i < kSlots * kRowBins; i += at.threads) {
    const unsigned count = rows->counts[i];
    if (count > 0) atomic_add(&of.table[rows->rows[i / kRowBins] * kRowBins + i % kRowBins], count);
  }
}

/// Blocks for so many elements: enough to fill the device, and no more than there is work for, since each clears and
/// hands over its slots.
constexpr unsigned observe_blocks(std::size_t count, int multiprocessors) {
  constexpr std::size_t kElements = std::size_t{16} * kObserveThreads;  // worth a block
  constexpr std::size_t kPerMultiprocessor = 3;                         // fit, by registers and shared memory
  const std::size_t wanted = (count + kElements - 1) / kElements;
  const std::size_t most = kPerMultiprocessor * static_cast<std::size_t>(multiprocessors);
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

}  // namespace detent::cuda
