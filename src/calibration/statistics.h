// What calibration learns of each observed tensor. Every calibration method is a pure function of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/fingerprint.h"
#include "calibration/exact_sum.h"
#include "calibration/extremes.h"
#include "calibration/histogram.h"

namespace detent::calibration {

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
