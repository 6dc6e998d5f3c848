// What one run of the model gives of a value: the step between what was counted and a Summary, the same wherever it was
// counted.
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "calibration/statistics.h"
#include "data/tap.h"

namespace detent::calibration {

/// A value to observe, and the node that makes it (for messages).
struct Observed {
  std::string value;
  std::string made_by;
};

struct ObserverOptions {
  bool histogram = false;
  /// Also count for each run which power-of-two scale is best; needs the histogram.
  bool votes = false;
  /// NaN and infinities are counted and left out instead of ending the run.
  bool allow_nonfinite = false;
  /// Pieces that a large tensor is reduced in at the same time, on the host.
  std::size_t threads = 1;
};

/// What observing took of a device; nothing on the host.
struct DeviceWork {
  std::uint64_t bytes = 0;  // of tensors that were read there
  std::uint64_t bytes_to_host = 0;

  DeviceWork& operator+=(const DeviceWork& other) noexcept {
    bytes += other.bytes;
    bytes_to_host += other.bytes_to_host;
    return *this;
  }
};

/// Observers of all values: what they have found, whichever memory the tensors are in. After an exception only good
/// for being destroyed.
class Observation : public data::TapReceiver {
 public:
  /// Names the sample for messages.
  virtual void begin_sample(const std::string& origin) = 0;
  /// The sample is through. Throws bad_input as receive() does, for what is known only now.
  virtual void end_sample() {}
  /// Summaries by value name; the other members are left to the caller.
  virtual Statistics statistics() = 0;
  /// So far.
  virtual DeviceWork device_work() const { return {}; }
};

/// The summary of one run but for its histogram. `extremes` are those of the finite values among the `count`.
Summary run_summary(std::uint64_t count, const KeyRange& extremes, std::uint64_t nan_count, std::uint64_t inf_count);

/// Throws bad_input naming tensor, node and sample when the run gave NaN or infinities that are not allowed.
void check_finite(const Summary& run, const Observed& observed, const std::string& sample,
                  const ObserverOptions& options);

/// Adds the run's votes, for which it needs its own histogram.
void count_best_scales(Summary& run);

}  // namespace detent::calibration
