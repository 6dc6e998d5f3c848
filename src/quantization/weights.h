// Float weights to integers, streamed: a weight is never held in memory as a whole.
#pragma once

#include <vector>

#include "calibration/extremes.h"
#include "onnx/tensor.h"
#include "quantization/formats.h"
#include "quantization/granularity.h"

namespace detent::quantization {

/// How a constant is quantized.
struct WeightFormat : IntFormat {
  Granularity granularity;
};

/// Extremes of each slice. Slices without elements stay empty.
std::vector<calibration::KeyRange> weight_extremes(const onnx::Tensor& weight, const Granularity& granularity);

/// Scale and zero point of each slice.
std::vector<ScaleZeroPoint> weight_params(const std::vector<calibration::KeyRange>& extremes,
                                          const WeightFormat& format);

/// The integers: clip(round_half_even(w / scale) + zero_point), in float32 as ONNX Runtime does; or the nearest floats
/// of the type to w / scale. The data are made when they are written.
onnx::Tensor quantized_weight(const onnx::Tensor& weight, std::string name, const WeightFormat& format,
                              const std::vector<ScaleZeroPoint>& params);

}  // namespace detent::quantization
