// The distribution that a summary stands for: values spread evenly over each bin of its histogram.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibration/statistics.h"

namespace detent::calibration {

struct Interval {
  double low = 0;
  double high = 0;
  double count = 0;
  double per_width = 0;  // count / (high - low); 0 for a point, whose ends are equal or as good as equal

  Interval(double from, double to, double values);
};

struct Density {
  std::vector<Interval> intervals;  // ascending, within [min, max]
  double min = 0;
  double max = 0;
  double total = 0;
};

/// Outer bins end at the exact extremes. Empty for a summary without a histogram.
Density density_of(const Summary& summary);

/// What integers of a quantized tensor stand for: multiples of `step` from `low` to `high`, 0 among them.
struct Grid {
  double step = 1;
  double low = 0;
  double high = 0;
};

enum class Power { one, two };
/// Mean over all values of |x - Q(x)| or of its square, Q rounding to the nearest grid point and clipping: integrated
/// over each interval, not taken at its centre.
double mean_error(const Density& density, const Grid& grid, Power power);
/// Sum of (x - Q(x))^2 over the values of intervals that lie within the grid, 0 being one of its points.
double rounding_error(std::span<const Interval> intervals, double step);

}  // namespace detent::calibration
