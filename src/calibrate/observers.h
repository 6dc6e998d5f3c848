// The observers: a receiver for the tap that reduces every tensor to its summary.
#pragma once

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
  /// NaN and infinities are counted and left out instead of ending the run.
  bool allow_nonfinite = false;
  /// Pieces that a large tensor is reduced in at the same time.
  std::size_t threads = 1;
};

class Observers : public exec::TapReceiver {
 public:
  Observers(std::vector<Observed> values, const ObserverOptions& options);

  /// Names the sample for messages and counts it.
  void begin_sample(const std::string& origin);
  /// Throws bad_input naming tensor, node and sample for a NaN or infinity, unless they are allowed.
  void receive(std::size_t tap, const exec::TensorView& tensor, const exec::ParallelFor& parallel) override;

  Statistics statistics() const;

 private:
  struct Part {
    Summary summary;
    HistogramScratch scratch;
  };
  void reduce(std::span<const float> values, HistogramScratch& scratch, Summary& summary) const;

  std::vector<Observed> values_;
  ObserverOptions options_;
  std::vector<Summary> summaries_;
  std::vector<Part> parts_;
  std::string sample_;
  std::uint64_t samples_ = 0;
};

}  // namespace detent::calibration
