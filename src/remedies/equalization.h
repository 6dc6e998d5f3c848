// Makes the channels of a value alike, so that one scale serves them all: each channel is divided by a factor, and the
// weights that read it are multiplied by it. Xiao et al. 2022, SmoothQuant, arXiv:2211.10438, equation 4.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "quantization/placement/placement.h"
#include "remedies/trial_model.h"

namespace detent::remedies {

/// Smallest and largest value of each channel, 0 among them.
class ChannelExtremes {
 public:
  /// One sample's values. `last_axis`: the channels are the last axis of the value; else the second. Throws bad_input
  /// when their number changes.
  void add(std::span<const float> values, std::span<const std::int64_t> shape, bool last_axis);

  std::size_t channels() const noexcept { return halves_[0].low.size(); }
  float low(std::size_t channel) const noexcept { return std::min(halves_[0].low[channel], halves_[1].low[channel]); }
  float high(std::size_t channel) const noexcept {
    return std::max(halves_[0].high[channel], halves_[1].high[channel]);
  }
  float magnitude(std::size_t channel) const noexcept { return std::max(high(channel), -low(channel)); }
  /// The largest magnitude over the mean of all; 1 where the channels are alike.
  double unevenness() const;
  /// How far beyond these extremes a range should reach for other samples, from 1 to 4: where four times as many are to
  /// be expected to reach, by the growth from half of the samples to all of them, less 1.3 times.
  float headroom() const;

 private:
  struct Half {
    std::vector<float> low, high;
  };
  std::array<Half, 2> halves_;  // of every second sample
  std::size_t samples_ = 0;
};

/// Values whose channel ranges can be equalized: those made in float that quantized nodes read in products with
/// constant weights only, and results of quantized convolutions, behind a Relu or not, that nodes in float and such
/// products read. Factors are still empty.
std::vector<graph::ChannelScaling> equalizable(const onnx::Model& model, const graph::Index& index,
                                               const quantization::Placement& placement);

/// Where products read the value, |x|^0.75 / |w|^0.25 of each channel from the largest |x| and |w|, over their
/// geometric mean. Else the share of `range` that the channel takes with headroom, at least 1/16 and at most 1.
std::vector<float> equalizing_factors(const onnx::Model& model, const graph::Index& index,
                                      const graph::ChannelScaling& scaling, const ChannelExtremes& extremes,
                                      const calibration::Range& range);

/// Of the value with its channels divided by their factors. Where products read it, the smallest that holds all
/// channels with headroom; else `range`.
calibration::Range scaled_range(const graph::ChannelScaling& scaling, const ChannelExtremes& extremes,
                                const calibration::Range& range);

}  // namespace detent::remedies
