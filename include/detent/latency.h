// How long a model runs.
#pragma once

#include <cstddef>

namespace detent {

/// Seconds of a model's runs in ONNX Runtime, which took turns with those of other models.
struct Latency {
  std::size_t runs = 0;
  double min = 0;     // [seconds]
  double median = 0;  // [seconds]
  double p90 = 0;     // [seconds]
  double cpu = 0;     // [seconds] median of the processor time of all threads
  /// `median` as a multiple of the first model's: the median over turns, with the quartiles.
  double ratio = 1;
  double ratio_low = 1;
  double ratio_high = 1;
  double cpu_ratio = 1;  // the same of `cpu`
  /// [share] of the time in which runs waited for a processor that other programs had
  double waiting = 0;

  /// Whether that is so much that processor times tell more than latencies.
  bool is_doubtful() const noexcept { return waiting > 0.1; }
};

}  // namespace detent
