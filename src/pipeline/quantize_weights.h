// The story of weights alone: float model in, weights in blocks out, samples optional.
#pragma once

#include <filesystem>
#include <optional>

#include "calibration/statistics.h"
#include "detent/quantize.h"

namespace detent::pipeline {

/// What others want of the run.
struct BlocksRequest {
  /// Where the model is written, in the place of QuantizeOptions::output; then neither model is run afterwards.
  std::optional<std::filesystem::path> file = {};
  /// Filled with the extremes of the float model's values where there are samples, from the pass that solves weights.
  calibration::Statistics* extremes = nullptr;
};

/// What quantize() does where WeightsOnlyConfig::enabled.
QuantizeResult quantize_weights(const QuantizeOptions& options, const BlocksRequest& request = {});

}  // namespace detent::pipeline
