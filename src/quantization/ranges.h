// From statistics to the ranges of all activations that get quantized.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "calibration/response.h"
#include "calibration/statistics.h"
#include "detent/config.h"
#include "quantization/assignment.h"
#include "quantization/placement/placement.h"

namespace detent::quantization {

struct RangeOptions {
  MethodConfig method;
  std::vector<TensorOverride> overrides;
  std::size_t threads = 1;
  /// What the readers of an activation make of it, where that is known.
  std::map<std::string, calibration::Response> consumer_functions = {};
  /// Ranges that follow from what reads the values, see mask_ranges.h; the user's word comes before them.
  calibration::Ranges known = {};
};

/// Ranges by value: what the user gave, what follows from the operator, or what the method finds. Values of which
/// nothing was seen are left out. Throws usage for options that make no sense or overrides that match no activation,
/// bad_input naming the tensor when the statistics lack it or what the method needs.
ActivationRanges find_ranges(const Placement& placement, const calibration::Statistics& statistics,
                             const QuantConfig& config, const RangeOptions& options);

/// Whether any tensor's method asks for histograms, or for votes on power-of-two scales.
bool needs_histograms(const RangeOptions& options);
bool needs_votes(const QuantConfig& config, const RangeOptions& options);

}  // namespace detent::quantization
