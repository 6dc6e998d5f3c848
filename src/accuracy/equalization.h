// Makes the channels of a value alike, so that one scale serves them all: each channel is divided by a factor, and the
// weights that read it are multiplied by it. Xiao et al. 2022, SmoothQuant, arXiv:2211.10438, equation 4.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "accuracy/fake_quantizer.h"
#include "graph/index.h"
#include "graph/rewrite.h"
#include "quantize/placement.h"

namespace detent::accuracy {

/// Smallest and largest value of each channel.
struct ChannelExtremes {
  std::vector<float> low, high;

  /// `last_axis`: the channels are the last axis of the value; else the second. Throws bad_input when their number
  /// changes.
  void add(std::span<const float> values, std::span<const std::int64_t> shape, bool last_axis);
  float magnitude(std::size_t channel) const noexcept;
  /// The largest magnitude over the mean of all; 1 where the channels are alike.
  double unevenness() const;
};

/// Values made in float that quantized nodes read in products with constant weights only; factors are still empty.
std::vector<graph::ChannelScaling> equalizable(const onnx::Model& model, const graph::Index& index,
                                               const quantization::Placement& placement);

/// |x|^0.75 / |w|^0.25 of each channel from the largest |x| and |w|, over their geometric mean.
std::vector<float> equalizing_factors(const onnx::Model& model, const graph::Index& index,
                                      const graph::ChannelScaling& scaling, const ChannelExtremes& extremes);

/// The smallest range that holds all channels, each divided by its factor.
calibration::Range scaled_range(const graph::ChannelScaling& scaling, const ChannelExtremes& extremes);

/// How the value and the weights of a scaling are rounded: the value as `of_value` says once its channels are divided.
Roundings scaled_roundings(const onnx::Model& model, const graph::Index& index,
                           const quantization::Placement& placement, const graph::ChannelScaling& scaling,
                           const quantization::ValueParams& of_value, const QuantConfig& config);

}  // namespace detent::accuracy
