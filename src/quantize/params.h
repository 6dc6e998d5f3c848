// Scale and zero point of every marked value, from ranges and weights.
#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "calibrate/extremes.h"
#include "calibrate/statistics.h"
#include "onnx/model.h"
#include "quantize/formats.h"
#include "quantize/placement.h"
#include "quantize/weights.h"

namespace detent::quantization {

/// Extremes of each channel of each marked constant.
using WeightExtremes = std::unordered_map<std::string, std::vector<calibration::KeyRange>>;

/// Reads all marked constants once. Throws bad_input naming tensor and reader for NaN or infinite weights; with
/// `allow_nonfinite` such constants are taken out of the placement and noted instead.
WeightExtremes scan_weights(const onnx::Model& model, Placement& placement, bool allow_nonfinite);

/// What a quantized value is stored as.
struct ValueParams {
  QuantType type = QuantType::uint8;
  std::vector<ScaleZeroPoint> channels;  // one entry without an axis
  std::optional<std::size_t> axis;
  std::string source;        // the value whose scale and zero point these are: itself unless shared
  calibration::Range range;  // what they come from; of weights with an axis: the first channel's
};
using Params = std::unordered_map<std::string, ValueParams>;

/// Parameters of all marks that can have them. `ranges` covers activations, see find_ranges(). Values without a range
/// (never produced, or always empty) and those that share with one are left out and noted.
Params compute_all(const onnx::Model& model, const Placement& placement, const calibration::Ranges& ranges,
                   const WeightExtremes& extremes, const QuantConfig& config, std::vector<std::string>& notes);

/// The type of a marked value.
QuantType type_of(const Mark& mark, const QuantConfig& config);

/// The format that a marked constant gets.
WeightFormat constant_format(const Mark& mark, const QuantConfig& config);

}  // namespace detent::quantization
