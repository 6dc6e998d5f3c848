// Float weights to integers, streamed: a weight is never held in memory as a whole.
#pragma once

#include <optional>
#include <vector>

#include "calibrate/extremes.h"
#include "onnx/tensor.h"
#include "quantize/formats.h"

namespace detent::quantization {

/// How a constant is quantized: with `axis`, one scale for each index along it.
struct WeightFormat : IntFormat {
  std::optional<std::size_t> axis;
};

/// Extremes of each channel (one entry without an axis). Channels without elements stay empty.
std::vector<calibration::KeyRange> weight_extremes(const onnx::Tensor& weight, std::optional<std::size_t> axis);

/// Scale and zero point of each channel.
std::vector<ScaleZeroPoint> weight_params(const std::vector<calibration::KeyRange>& extremes,
                                          const WeightFormat& format);

/// The integers: clip(round_half_even(w / scale) + zero_point), in float32 as ONNX Runtime does. The data are made when
/// they are written.
onnx::Tensor quantized_weight(const onnx::Tensor& weight, std::string name, const WeightFormat& format,
                              const std::vector<ScaleZeroPoint>& params);

}  // namespace detent::quantization
