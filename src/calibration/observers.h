// Receivers for the tap that reduce every tensor to its summary.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "calibration/run_summary.h"

namespace detent::calibration {

/// Observers of tensors in the host's memory.
class Observers : public Observation {
 public:
  Observers(std::vector<Observed> values, const ObserverOptions& options);

  void begin_sample(const std::string& origin) override { sample_ = origin; }
  /// Throws bad_input naming tensor, node and sample for a NaN or infinity, unless they are allowed.
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor& parallel) override;
  Statistics statistics() override;

 private:
  /// What one thread finds in its part of a tensor.
  struct Part {
    KeyRange extremes;
    std::uint64_t nan_count = 0;
    std::uint64_t inf_count = 0;
    HistogramScratch scratch;
  };
  void reduce(std::span<const float> values, Part& part) const;

  std::vector<Observed> values_;
  ObserverOptions options_;
  std::vector<Summary> summaries_;
  std::vector<Part> parts_;
  std::string sample_;
};

}  // namespace detent::calibration
