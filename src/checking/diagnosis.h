// Why a consumer's integers are not those of exact arithmetic, as far as that is known.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/targets.h"
#include "data/sample.h"
#include "detent/check.h"
#include "graph/index.h"
#include "onnx/model.h"

namespace detent::checking {

/// How far a consumer's values are from those of the reference, in steps.
struct Differences {
  std::uint64_t elements = 0, differ = 0, over_one = 0;
  double max_steps = 0;

  /// Of two arrays of integers of 8 or 16 bits, or of two of floats with a step of their own. A value that is finite on
  /// one side alone is infinitely far. Throws bad_input naming `name` when types or shapes differ.
  void add(const data::Array& reference, const data::Array& found, double step, const std::string& name);
  double share() const noexcept { return part_of(differ); }
  double share_over_one() const noexcept { return part_of(over_one); }

 private:
  double part_of(std::uint64_t count) const noexcept {
    return elements == 0 ? 0 : static_cast<double>(count) / static_cast<double>(elements);
  }
};

/// Whether Differences can tell of it.
bool is_comparable(onnx::DataType type) noexcept;
bool is_quantized(onnx::DataType type) noexcept;

/// The largest finite magnitude of an array of floats.
double magnitude_of(const data::Array& array);

// A quantized model in groups, each of which a runtime may run as one kernel: what lies between values in quantized
// form.

/// Nodes all of whose results but the last one's are read within the group alone. A QuantizeLinear ends its group. A
/// DequantizeLinear and nodes that compute from constants belong to each group that reads them.
struct Group {
  std::vector<int> nodes;            // in the model's order
  std::vector<std::string> inputs;   // inputs of the graph, and values that earlier groups make
  std::vector<std::string> outputs;  // that later groups read, and outputs of the graph; of the last node
  int last = graph::kNone;
};

/// In an order in which each group reads what earlier ones make. Nodes must be in topological order.
std::vector<Group> groups_of(const onnx::Model& model, const graph::Index& index);

/// Makes a model of a group. Shares tensor data with the model, which must outlive it.
class GroupModels {
 public:
  GroupModels(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types);
  onnx::Model model(const Group& group) const;

 private:
  const onnx::Model& model_;
  const graph::Index& index_;
  const graph::ValueTypes& types_;
  onnx::Model frame_;  // all but graphs
};

/// What is known to make a group's result differ like that; empty: nothing is.
std::string cause_of(const onnx::Model& model, const graph::Index& index, const Group& group,
                     const Differences& differences, const config::Target& target);

/// "qnn: 20 nodes accepted, 1 fall back, 0 refused; 1 left to the CPU, 2 parts of the graph; 98.0 % of 1.2 M
/// multiplications in integers". What is not known of the multiplications is left out.
std::string headline(const CheckResult& result);

}  // namespace detent::checking
