// Weights in blocks, and all else in 16-bit floats.
#pragma once

#include <filesystem>

#include "calibration/statistics.h"
#include "detent/quantize.h"

namespace detent::pipeline {

/// What quantize() does where WeightsOnlyConfig::enabled and QuantConfig::float_type is of 16 bits: weights as without
/// that type, then the model with them is converted. Neither model is run afterwards. `extremes` are filled with those
/// of the float model's values where there are samples.
QuantizeResult quantize_weights_in_16_bits(const QuantizeOptions& options, calibration::Statistics* extremes = nullptr);

/// The second half: converts a model with weights in blocks, whose result is given. `extremes` are needed where there
/// are samples.
QuantizeResult convert_blocks(const QuantizeOptions& options, const std::filesystem::path& blocks,
                              QuantizeResult result, const calibration::Statistics& extremes);

}  // namespace detent::pipeline
