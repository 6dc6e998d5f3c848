// Whether the result of a run can be put to use, in words.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "data/sample.h"
#include "detent/compare.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "graph/decisions.h"
#include "graph/index.h"
#include "onnx/model.h"

namespace detent::run {

/// From this SQNR of the worst output on, a result counts as close: the error is a tenth of the signal.
constexpr double kCloseDb = 20;
/// Below this one it counts as far: a third of the signal.
constexpr double kFarDb = 10;
/// Fewer samples say little of all inputs.
constexpr std::size_t kFewSamples = 8;

/// The size of an error beside that of the signal (both as root mean squares), 0 to 1 and more: 20 dB are 0.1.
double error_of(double sqnr_db) noexcept;

Outcome outcome_of(const QuantizeResult& result);

/// A node that stays in float, or takes 16-bit activations, with what was measured of it.
struct KeptNode {
  std::string node;
  std::string why;
  const FallbackNode* measured = nullptr;  // lives as long as the result
};

/// The nodes of which a run decided that they stay in float, or get more bits.
std::vector<KeptNode> kept_nodes(const QuantizeResult& result);

// Channels of an output that a quantized model leaves constant, or little more, since they share a scale with much
// larger ones: boxes to 600 beside scores to 1. One figure for the output does not show them.

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

// Two forms of a model that take the same decisions while they run, so that their values can be compared one by one:
// the second one takes from the first what sizes follow from, and random numbers.

class SharedDecisions {
 public:
  /// Both models, whose values have the same names, get copies of what deciding nodes read. The nodes of the first must
  /// be in topological order.
  SharedDecisions(const exec::Runtime& runtime, onnx::Model& first, onnx::Model& second);

  /// Values to tap in both, in this order; none: nothing depends on decisions.
  const std::vector<std::string>& taps() const noexcept { return taps_; }
  /// What decisions are made from: see graph::Decisions::judged.
  const std::vector<std::string>& judged() const noexcept { return judged_; }
  /// Values within the first model that cannot be compared.
  const std::unordered_set<std::string>& apart() const noexcept { return apart_; }
  /// What there is to say.
  const std::vector<std::string>& notes() const noexcept { return notes_; }

  /// Of a run of the first model.
  void record(std::size_t tap, const data::TensorView& tensor);
  /// Of a run of the second one behind it, in a session of SessionOptions::edits.
  void apply_recorded(std::size_t tap, const data::TensorView& tensor) const;
  /// What was recorded of the last run, in the order of taps().
  std::vector<data::Array> recorded() const;
  /// What comes next is as that run was.
  void recall(std::vector<data::Array> recorded);

 private:
  void add_copies(const std::vector<graph::Operand>& operands, onnx::Model& first, onnx::Model& second);

  std::vector<std::string> taps_, judged_, notes_;
  std::unordered_set<std::string> apart_;
  mutable std::mutex mutex_;
  std::vector<data::Array> held_;
};

/// Receivers of runs whose only taps these are.
class DecisionRecorder final : public data::TapReceiver {
 public:
  explicit DecisionRecorder(SharedDecisions& decisions) : decisions_(decisions) {}
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor&) override {
    decisions_.record(tap, tensor);
  }

 private:
  SharedDecisions& decisions_;
};

class DecisionPlayer final : public data::TapReceiver {
 public:
  explicit DecisionPlayer(const SharedDecisions& decisions) : decisions_(decisions) {}
  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor&) override {
    decisions_.apply_recorded(tap, tensor);
  }

 private:
  const SharedDecisions& decisions_;
};

/// How results of such a model are judged; empty where nothing is held.
std::vector<std::string> decision_notes(const onnx::Model& model, const graph::Decisions& decisions);

/// Where a decoder's token ids, mask and logits are among its inputs and outputs.
struct TokenPlaces {
  std::size_t ids = 0;
  std::optional<std::size_t> mask;
  std::size_t logits = 0;
};

/// nullopt for models other than decoders with a cache, or without an output 'logits'.
std::optional<TokenPlaces> find_tokens(const std::vector<data::InputSpec>& inputs,
                                       const std::vector<std::string>& outputs);

/// Running sums over all positions that a next token is known for: in natural logarithms, of the distributions that the
/// softmax makes of the logits.
class NextTokenSums {
 public:
  /// ids: [row, position]; logits: [row, position, vocabulary] or, of decoders that give only the last position, any
  /// other shape, which adds nothing. mask: [row, past + position], 0 where there is padding. Throws bad_input when an
  /// id is not in the vocabulary, or the models' logits differ in shape.
  void add(const data::Array& ids, const data::Array* mask, const data::Array& float_logits,
           const data::Array& quantized_logits);
  /// nullopt when nothing was added.
  std::optional<NextTokens> result() const;

 private:
  void add_position(std::span<const float> x, std::span<const float> y, std::size_t next);

  std::uint64_t positions_ = 0;
  std::uint64_t agreeing_ = 0;
  double float_loss_ = 0;
  double quantized_loss_ = 0;
  double divergence_ = 0;
};

}  // namespace detent::run
