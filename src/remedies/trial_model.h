// The float model with a place for each quantized value at which it can be rounded, and the places where the effect on
// the model's results is measured.
#pragma once

#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/values.h"
#include "onnx/model.h"
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

}  // namespace detent::remedies
