// The float model with a place for each quantized value at which it can be rounded, and the places where the effect on
// the model's results is measured.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "data/sample.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "onnx/tensor.h"
#include "quantization/assignment.h"
#include "quantization/placement/placement.h"

namespace detent::remedies {

struct TrialModel {
  onnx::Model model;
  graph::ValueTypes types;
  /// Values to tap, weights among them.
  std::vector<std::string> taps;
  /// By tapped value, the mark whose parameters round it; taps that only pass are not in it.
  std::unordered_map<std::string, std::string> mark_of;
  /// Marks of weights.
  std::unordered_set<std::string> weights;
  /// See judged_values().
  std::vector<std::string> outputs;
  /// Float values that decisions look at: the outputs, where a Concat made one its parts, so that one part of large
  /// numbers does not hide the error of the others, and where a Softmax made one what it reads.
  std::vector<std::string> points;
  /// Tapped values that are the same in all runs of a sample: what sizes, and choices among values, follow from. What
  /// those are made from is among the points.
  std::unordered_set<std::string> held;
  /// Values that cannot be compared: see graph::Decisions::apart.
  std::unordered_set<std::string> apart;
  /// Positions in the original graph become positions in this one.
  std::vector<int> map_cuts(const std::vector<int>& cuts) const;

  std::vector<int> position;  // of each original node
};

/// Float outputs of the graph that nodes make: accuracy is told of these. Where it has outputs of integers alone, as
/// behind an ArgMax, the floats that those are made from.
std::vector<std::string> judged_values(const onnx::Model& model, const graph::ValueTypes& types);

/// `model` as prepared, with the marks of `placement` that have an assignment.
TrialModel make_trial_model(const onnx::Model& model, const graph::ValueTypes& types,
                            const quantization::Placement& placement, const quantization::AssignedValues& values);

// Quantization and dequantization of tensors on their way through a float model: what a QuantizeLinear and a
// DequantizeLinear in that place would do to them, switched on and off from run to run.

/// Rounds `values`, a dense tensor of `shape`, to what its integers stand for.
void fake_quantize(std::span<float> values, std::span<const std::int64_t> shape,
                   const quantization::ValueAssignment& params);

/// `values` become what integers of the type and in the order of a stored tensor stand for.
void dequantize(std::span<float> values, std::span<const std::int64_t> shape,
                const quantization::ValueAssignment& params, std::span<const std::byte> integers);

/// How a value is rounded.
struct Rounding {
  quantization::ValueAssignment params;
  /// What its channels are multiplied by before they are rounded, and divided by afterwards; empty: nothing.
  std::vector<float> factors = {};
  std::ptrdiff_t factor_axis = -1;  // the axis of the channels; negative ones count from the end
  /// Of a weight: what it is stored as, unless it is rounded to the nearest (and nothing is multiplied).
  std::optional<onnx::TensorData> integers = {};
};
using Roundings = std::unordered_map<std::string, Rounding>;

/// As the parameters say, nothing multiplied.
Roundings roundings_of(const quantization::AssignedValues& params);

/// Marks that are rounded in a run, and how. What it points to must outlive it.
using Trial = std::unordered_map<std::string, const Rounding*>;
/// All of them.
Trial trial_of(const Roundings& roundings);

/// A receiver that rounds the tapped values that are switched on.
class FakeQuantizer : public data::TapReceiver {
 public:
  /// What the next runs tap, in the order in which they count taps: for each tap the mark that says how it is rounded,
  /// or an empty string for a value that only passes.
  void expect(std::vector<std::string> marks) {
    marks_ = std::move(marks);
    held_.assign(marks_.size(), std::nullopt);
  }
  /// The value of this tap is the same in all runs of a sample: as the last run in which nothing is rounded made it.
  void hold(std::size_t tap) { held_.at(tap).emplace(); }
  /// Marks whose values are the same in every run: their integers are kept, up to some memory.
  void expect_constants(std::unordered_set<std::string> marks) { constants_ = std::move(marks); }
  /// What is rounded from now on; must outlive that. Null: nothing.
  void set_trial(const Trial* trial) { trial_ = trial; }

  /// Bytes of integers that are kept of constants.
  static constexpr std::uint64_t kMostKept = std::uint64_t{16} << 20;

  void receive(std::size_t tap, const data::TensorView& tensor, const data::ParallelFor& parallel) override;

 private:
  void round_constant(std::span<float> values, std::span<const std::int64_t> shape, const Rounding& rounding);

  bool pass_held(std::size_t tap, const data::TensorView& tensor);

  std::vector<std::string> marks_;
  std::vector<std::optional<std::vector<std::byte>>> held_;  // by tap
  std::unordered_set<std::string> constants_;
  std::unordered_map<const Rounding*, std::vector<std::uint8_t>> kept_;  // steps above the lowest integer
  std::uint64_t kept_bytes_ = 0;
  const Trial* trial_ = nullptr;
};

}  // namespace detent::remedies
