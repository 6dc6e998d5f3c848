// Channels of an output that a quantized model leaves constant, or little more, since they share a scale with much
// larger ones: boxes to 600 beside scores to 1. One figure for the output does not show them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
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
  /// What a figure of the whole output hides, in sentences: channels that are lost; scores among other values that are
  /// far; classes of a distribution that are others than the float model's.
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
  void add_decisions(std::span<const float> x, std::span<const float> y, std::size_t classes);
  bool are_scores() const { return counted_ > 0 && low_ >= 0 && high_ <= 1; }
  std::string far_scores() const;
  std::string other_classes() const;
  std::optional<ChannelGroup> worst_of(const Axis& axis) const;
  static bool is_lost(const Channel& channel, float largest);

  std::string output_;
  bool counts_;               // false: probabilities, or shapes that differ from sample to sample
  bool is_state_ = false;     // read again as an input: nobody looks at its channels
  float low_ = 0, high_ = 0;  // of all values
  std::uint64_t counted_ = 0;
  std::vector<std::uint64_t> chosen_;           // rows of a distribution by their likeliest class
  std::vector<std::uint64_t> changed_;          // of these, rows that have another one in the quantized model
  bool are_rows_ = true;                        // whether all rows are distributions
  bool started_ = false, may_be_lost_ = false;  // a matrix has too few values of a channel
  std::vector<Axis> axes_;
};

/// "channels 4 to 11 of 'y', axis 1".
std::string channel_group_text(const ChannelGroup& group);

}  // namespace detent::run
