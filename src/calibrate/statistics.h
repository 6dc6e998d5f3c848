// What calibration learns of each observed tensor. Every calibration method is a pure function of it.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "calibrate/extremes.h"
#include "calibrate/histogram.h"

namespace detent::calibration {

/// A mergeable summary: merging is exact, commutative and associative.
struct Summary {
  KeyRange extremes;        // over finite values
  Histogram histogram;      // over finite values; empty when it was not asked for
  std::uint64_t count = 0;  // all values, finite or not
  std::uint64_t nan_count = 0;
  std::uint64_t inf_count = 0;

  bool has_values() const noexcept { return !extremes.empty(); }
  void merge(const Summary& other);
};

/// Summaries by value name.
struct Statistics {
  std::map<std::string, Summary> tensors;
  std::uint64_t samples = 0;

  void merge(const Statistics& other);
};

/// The interval of real values that the integers of a quantized tensor shall cover.
struct Range {
  float min = 0;
  float max = 0;
};
using Ranges = std::map<std::string, Range>;

/// Calibration method `minmax`: the smallest and largest finite value seen; tensors without values are left out.
Ranges minmax_ranges(const Statistics& statistics);

}  // namespace detent::calibration
