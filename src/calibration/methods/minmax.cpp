#include "calibration/methods.h"

namespace detent::calibration {

Range minmax_range(const Summary& summary, bool average) {
  if (!average) return {summary.extremes.lowest(), summary.extremes.highest()};
  const auto runs = static_cast<double>(summary.runs);
  return {static_cast<float>(summary.sum_of_minima.value() / runs),
          static_cast<float>(summary.sum_of_maxima.value() / runs)};
}

namespace {

Range range_by(const MethodInput& input) { return minmax_range(input.summary, input.config.average); }

}  // namespace

namespace methods {

extern const Method minmax{.id = CalibrationMethod::minmax, .needs_histogram = false, .range = range_by};

}  // namespace methods

}  // namespace detent::calibration
