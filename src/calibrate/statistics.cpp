#include "calibrate/statistics.h"

namespace detent::calibration {

void Summary::merge(const Summary& other) {
  extremes.merge(other.extremes);
  histogram.merge(other.histogram);
  count += other.count;
  nan_count += other.nan_count;
  inf_count += other.inf_count;
}

void Statistics::merge(const Statistics& other) {
  for (const auto& [name, summary] : other.tensors) tensors[name].merge(summary);
  samples += other.samples;
}

}  // namespace detent::calibration
