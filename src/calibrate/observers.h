// The observers: a receiver for the tap that reduces every tensor to its summary.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "calibrate/statistics.h"
#include "exec/tap.h"

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
  /// Pieces that a large tensor is reduced in at the same time.
  std::size_t threads = 1;
};

class Observers : public exec::TapReceiver {
 public:
  Observers(std::vector<Observed> values, const ObserverOptions& options);

  /// Names the sample for messages.
  void begin_sample(const std::string& origin) { sample_ = origin; }
  /// Throws bad_input naming tensor, node and sample for a NaN or infinity, unless they are allowed.
  void receive(std::size_t tap, const exec::TensorView& tensor, const exec::ParallelFor& parallel) override;

  /// Summaries by value name; the other members are left to the caller.
  Statistics statistics() const;

 private:
  /// What one thread finds in its part of a tensor.
  struct Part {
    KeyRange extremes;
    std::uint64_t nan_count = 0;
    std::uint64_t inf_count = 0;
    HistogramScratch scratch;
  };
  void reduce(std::span<const float> values, Part& part) const;
  Summary collect(std::size_t count, std::span<Part> parts) const;

  std::vector<Observed> values_;
  ObserverOptions options_;
  std::vector<Summary> summaries_;
  std::vector<Part> parts_;
  std::string sample_;
};

}  // namespace detent::calibration
