// quantize() where nothing becomes integers: another floating-point type only.
#pragma once

#include <filesystem>
#include <string>
#include <unordered_set>

#include "calibration/statistics.h"
#include "detent/quantize.h"

namespace detent::pipeline {

/// What others know and want of a run.
struct ConversionRequest {
  /// The extremes of the model's values on the samples; as long as no value is missing, these do not run again,
  /// and need not be there.
  const calibration::Statistics* known = nullptr;
  /// The float model that the result is compared with, where it is not that of the options.
  std::filesystem::path original = {};
  /// Ids of nodes that stay in float32; those that the model does not have mean nothing.
  std::unordered_set<std::string> in_float32 = {};
};

/// The options are valid, and their preset quantizes nothing.
QuantizeResult convert_floats(const QuantizeOptions& options, const ConversionRequest& request = {});

}  // namespace detent::pipeline
