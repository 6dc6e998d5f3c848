// Float weights to integers, streamed: a weight is never held in memory as a whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "calibration/statistics.h"
#include "onnx/model.h"
#include "onnx/tensor.h"
#include "quantization/formats.h"

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

// Weights that meet in 16 bits. On x86 before VNNI, ONNX Runtime's kernels for uint8 times int8 add two products with
// vpmaddubsw, which saturates. With activations up to 255 that cannot happen where the weights of one sign in a pair
// add up to at most 128.

/// What the weights of one sign in a pair may add up to.
inline constexpr std::int32_t kMostOfPair = 128;

/// The sums that a product makes of its weight, stored as [sums, channels, positions] or, with one position, as
/// [sums, channels, outputs]. A kernel adds position by position, all channels of each, two at a time.
struct Summation {
  std::size_t channels = 0;   // of one group's inputs
  std::size_t positions = 1;  // of a convolution's kernel
  std::size_t outputs = 1;    // that have their weights side by side

  friend bool operator==(const Summation&, const Summation&) = default;

  std::size_t fan_in() const noexcept { return channels * positions; }
  /// The weights of one sum that meet, by their order in memory. With an odd number one is left alone.
  std::vector<std::pair<std::size_t, std::size_t>> pairs() const;
};

/// Nothing for operators and weights that no such kernel takes: depthwise convolutions have one of their own,
/// transposed ones are computed in float.
std::optional<Summation> summation_of(const onnx::Node& node, const std::vector<std::int64_t>& dims);

/// The smallest scale of each slice with which, rounded half to even, no pair of a symmetric weight is above
/// kMostOfPair. No larger scale brings one back, since rounding is monotone. Blocks must divide the last axis.
std::vector<float> pair_scales(const onnx::Tensor& weight, const Granularity& granularity, const Summation& summation);

}  // namespace detent::quantization
