// What calibration learns of each observed tensor. Every calibration method is a pure function of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/numbers.h"

namespace detent::calibration {

// The sum of floats without rounding, so that it cannot depend on their order.

/// A fixed-point integer wide enough for every finite float, in limbs of 32 bits with room for carries: limb i weighs
/// 2^(32 i - 149). Good for 2^31 additions.
class ExactSum {
 public:
  static constexpr std::size_t kLimbs = 9;
  using Limbs = std::array<std::int64_t, kLimbs>;

  ExactSum() = default;
  explicit ExactSum(const Limbs& limbs) : limbs_(limbs) { carry(); }

  void add(float value);  // finite
  void merge(const ExactSum& other);
  /// Nearest double, but for a few units in the last place; the same for the same sum.
  double value() const;
  /// In the one form with all but the last limb in [0, 2^32): equal sums have equal limbs.
  Limbs limbs() const;

 private:
  void carry();

  Limbs limbs_{};
};

// Smallest and largest value of a run of floats, with NaN and infinities kept visible.

/// Floats map to integers in the same order: -NaN < -inf < … < -0 < +0 < … < +inf < +NaN. Integer comparison vectorizes
/// without fast-math, and a NaN cannot hide.
constexpr std::int32_t order_key(std::int32_t bits) noexcept { return bits ^ ((bits >> 31) & 0x7fffffff); }

struct KeyRange {
  std::int32_t min = 0x7fffffff;
  std::int32_t max = -0x7fffffff - 1;

  bool empty() const noexcept { return min > max; }
  void merge(const KeyRange& other) noexcept {
    min = other.min < min ? other.min : min;
    max = other.max > max ? other.max : max;
  }
  /// Whether all values seen are finite.
  bool finite() const noexcept;
  float lowest() const noexcept;
  float highest() const noexcept;
};

KeyRange scan(std::span<const float> values) noexcept;

// Counts of values by the leading bits of the float itself: sign, exponent and leading mantissa bits. No range has to
// be known beforehand, and counts are integers, so adding and merging are exact in any order.

/// One bin: values v with low <= v <= high. Of each edge, the one nearer to 0 belongs to the bin.
struct Bin {
  float low = 0;
  float high = 0;
  std::uint64_t count = 0;
};

/// The counts of one sign are kept in rows, one for each exponent that occurs. A row's resolution follows from its
/// distance to the largest exponent of its sign: 8 mantissa bits for the first 6 octaves, 6 bits for 6 more, 4 bits
/// further down. It depends only on the data as a whole, not on the order in which they came. Memory: at most
/// 2 * (6 * 256 + 6 * 64 + 242 * 16) counters of 8 bytes = 90 KiB a tensor, 140 KiB with the nodes of the maps; a
/// typical activation takes about 35 KiB.
class Histogram {
 public:
  static constexpr int kFineBits = 8;
  static constexpr std::size_t kFineBins = std::size_t{1} << kFineBits;
  static constexpr int kExponents = 255;  // biased; the last one would be infinity and NaN
  /// Counters of all values, by the leading 17 bits of the float: 256 rows of either sign.
  static constexpr std::size_t kTable = std::size_t{512} * kFineBins;
  /// Mantissa bits of a row that lies so many octaves below the top one of its sign.
  static constexpr int bits_below(int octaves) { return octaves < 6 ? kFineBits : octaves < 12 ? 6 : 4; }

  using Counts = std::vector<std::uint64_t>;  // a power of two of equally wide bins
  using Rows = std::map<int, Counts>;         // by biased exponent, 0 .. kExponents - 1

  Histogram() = default;
  /// Throws std::invalid_argument when the rows are not such as a histogram makes: exponent, number of bins, an empty
  /// row.
  Histogram(Rows positive, Rows negative);

  /// Adds the counts of all fine bins of a sign and biased exponent; at least one is not 0.
  void add_row(bool negative, int exponent, std::span<const std::uint32_t, kFineBins> counts);
  /// Adds all counters of such a table, of finite values; their sum is below 2^32. -0 counts as 0.
  void add_table(std::span<std::uint32_t, kTable> table);
  void merge(const Histogram& other);

  bool empty() const { return sides_[0].empty() && sides_[1].empty(); }
  std::uint64_t total() const;
  /// Non-empty bins by ascending value. The smallest bins are exact zeros and denormals of both signs.
  std::vector<Bin> bins() const;
  const Rows& rows(bool negative) const { return sides_[negative ? 1 : 0]; }
  std::size_t memory_bytes() const;

 private:
  static Counts& row(Rows& rows, int exponent);

  std::array<Rows, 2> sides_;  // positive and zero, negative
};

/// A thread's counters for a run of values; reused from call to call. 2 MiB, of which only the rows that occur are
/// ever touched.
class HistogramScratch {
 public:
  /// Counts finite values.
  void count(std::span<const float> values);
  /// Moves the counts into `histogram`.
  void drain(Histogram& histogram);

 private:
  static constexpr std::size_t kRows = 512;
  static constexpr std::size_t kBins = Histogram::kFineBins;
  static constexpr std::size_t kTable = kRows * kBins;
  // Tables are used in turn: equal neighbours then do not wait for each other's increment.
  static constexpr std::size_t kTables = 4;
  std::vector<std::uint32_t> tables_;  // made on first use
  std::array<std::uint8_t, kRows> touched_{};
};

/// How many runs found which power-of-two scale best; keys are exponents.
using Votes = std::map<int, std::uint64_t>;

/// A mergeable summary: merging is exact, commutative and associative. Everything is over finite values.
struct Summary {
  KeyRange extremes;
  Histogram histogram;      // empty when it was not asked for
  std::uint64_t count = 0;  // all values, finite or not
  std::uint64_t nan_count = 0;
  std::uint64_t inf_count = 0;

  std::uint64_t runs = 0;  // in which the tensor had finite values
  ExactSum sum_of_minima;  // one of each run
  ExactSum sum_of_maxima;
  Votes votes_8_bit;  // empty unless asked for, see best_power_of_two(); a run of zeros does not vote
  Votes votes_16_bit;

  bool has_values() const noexcept { return !extremes.empty(); }
  bool all_zero() const noexcept { return has_values() && extremes.lowest() == 0 && extremes.highest() == 0; }
  void merge(const Summary& other);
};

/// Summaries by value name, and what they were taken from.
struct Statistics {
  std::map<std::string, Summary> tensors;
  std::uint64_t samples = 0;
  Fingerprint model;
  Fingerprint data;        // sum over the samples
  std::string model_name;  // for messages
  bool has_histograms = false;
  bool has_votes = false;
  std::uint64_t repeated = 0;  // samples that were the same as an earlier one; not stored

  /// Of the same model and with the same parts, see check_mergeable().
  void merge(const Statistics& other);
};

/// The interval of real values that the integers of a quantized tensor shall cover.
struct Range {
  float min = 0;
  float max = 0;
};
using Ranges = std::map<std::string, Range>;

}  // namespace detent::calibration
