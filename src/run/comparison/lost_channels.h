// Channels of an output that a quantized model leaves constant, or little more, since they share a scale with much
// larger ones: boxes to 600 beside scores to 1. One figure for the output does not show them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/quantize.h"
#include "graph/index.h"
#include "onnx/model.h"

namespace detent::run {

/// Of one output.
class ChannelSums {
 public:
  /// Of the float model, of which `index` is. An output of probabilities has channels that are small and may be lost.
  ChannelSums(const onnx::Model& model, const graph::Index& index, std::string output);
  /// The results of both models on a sample: floats of one shape.
  void add(const data::Array& in_float, const data::Array& quantized);
  /// A sentence for each run of neighbouring channels that is lost.
  std::vector<std::string> lost() const;
  /// Of the runs of channels with values of one size, if there are several, the one with the least SQNR.
  std::optional<ChannelGroup> worst() const;

 private:
  struct Channel {
    float low = 0, high = 0;  // of the float model, as the sums are; errors: squares of differences from it
    double count = 0, sum = 0, squares = 0, errors = 0;
    double variation() const { return squares - sum * sum / count; }
    float largest() const { return std::max(std::abs(low), std::abs(high)); }
  };
  struct Axis {
    std::size_t axis = 0;
    std::vector<Channel> channels;
  };

  void start(const data::Array& in_float);
  std::optional<ChannelGroup> worst_of(const Axis& axis) const;
  static bool is_lost(const Channel& channel, float largest);

  std::string output_;
  bool counts_;                                 // false: probabilities, or shapes that differ from sample to sample
  bool started_ = false, may_be_lost_ = false;  // a matrix has too few values of a channel
  std::vector<Axis> axes_;
};

/// "channels 4 to 11 of 'y', axis 1".
std::string channel_group_text(const ChannelGroup& group);

}  // namespace detent::run
