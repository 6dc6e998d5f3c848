// Weights that meet in 16 bits. On x86 before VNNI, ONNX Runtime's kernels for uint8 times int8 add two products with
// vpmaddubsw, which saturates. With activations up to 255 that cannot happen where the weights of one sign in a pair
// add up to at most 128.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "onnx/model.h"
#include "quantization/granularity.h"

namespace detent::quantization {

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
