#include "calibrate/statistics.h"

namespace detent::calibration {

Ranges minmax_ranges(const Statistics& statistics) {
  Ranges ranges;
  for (const auto& [name, summary] : statistics.tensors) {
    if (summary.has_values()) ranges[name] = {summary.extremes.lowest(), summary.extremes.highest()};
  }
  return ranges;
}

}  // namespace detent::calibration
