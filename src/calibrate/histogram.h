// Counts of values by the leading bits of the float itself: sign, exponent and leading mantissa bits. No range has to
// be known beforehand, and counts are integers, so adding and merging are exact in any order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace detent::calibration {

/// One bin: values v with low <= |v| < high of one sign (row 0 of denormals starts at 0).
struct Bin {
  float low = 0;
  float high = 0;
  bool negative = false;
  std::uint64_t count = 0;
};

/// Resolution: 8 mantissa bits for the kFineOctaves octaves below the largest exponent that occurs, 4 bits further
/// down. The choice depends only on the data as a whole, not on the order in which they came. Memory: at most 2 *
/// (kFineOctaves * 256 + 249 * 16) counters of 8 bytes = 86 KiB a tensor, 135 KiB with the nodes of the map; a typical
/// activation takes about 30 KiB.
class Histogram {
 public:
  static constexpr int kFineBits = 8;
  static constexpr int kCoarseBits = 4;
  static constexpr int kFineOctaves = 6;
  static constexpr std::size_t kFineBins = std::size_t{1} << kFineBits;

  /// Adds the counts of all fine bins of a sign and biased exponent (0..254).
  void add_row(bool negative, int exponent, std::span<const std::uint32_t, kFineBins> counts);
  void merge(const Histogram& other);

  std::uint64_t total() const;
  /// Non-empty bins by ascending value: most negative first.
  std::vector<Bin> bins() const;
  std::size_t memory_bytes() const;

 private:
  struct Row {
    bool fine = true;
    std::vector<std::uint64_t> counts;
  };
  bool is_fine(int exponent) const { return exponent > top_ - kFineOctaves; }
  void raise_top(int exponent);
  template <class Count>
  static void add(Row& row, std::span<const Count> counts);
  Row& row(bool negative, int exponent);

  int top_ = -1;             // largest biased exponent with a count
  std::map<int, Row> rows_;  // key: exponent, plus 256 for negative values
};

/// A thread's counters for one run of values; reused from call to call. 1 MiB.
class HistogramScratch {
 public:
  /// Counts finite values and moves the counts into `histogram`.
  void count(std::span<const float> values, Histogram& histogram);

 private:
  static constexpr std::size_t kRows = 512;
  static constexpr std::size_t kBins = Histogram::kFineBins;
  // Two tables, used in turn: equal neighbours then do not wait for each other's increment.
  std::vector<std::uint32_t> tables_;  // made on first use
  std::array<std::uint8_t, kRows> touched_{};
};

}  // namespace detent::calibration
