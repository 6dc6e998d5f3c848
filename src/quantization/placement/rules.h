// Private to placement/: the rule of each operator type, and the marks that rules make.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "graph/index.h"
#include "quantization/placement/placement.h"

namespace detent::quantization {

/// Marks in the order of their first making; what a later rule says of a value replaces what an earlier one said, in
/// place.
class Marks {
 public:
  Marks(const onnx::Model& model, const graph::ValueTypes& types, const graph::Index& index);

  /// Values that are not float32 are passed over by all of these.
  void activation(const std::string& value);
  /// One scale for the tensor where readers have channels along different axes.
  void weight(const std::string& value, const Granularity& granularity,
              const std::optional<Summation>& paired = std::nullopt);
  void shared(const std::string& value, const std::string& provider);
  void bias(const std::string& value) { biases_.insert(value); }
  void erase(const std::string& value);
  bool contains(const std::string& value) const;
  std::vector<Mark> in_order() const;

 private:
  bool quantizable(const std::string& value) const;
  Mark& put(const std::string& value);

  const onnx::Model& model_;
  const graph::ValueTypes& types_;
  const graph::Index& index_;
  std::vector<std::optional<Mark>> order_;
  std::unordered_map<std::string, std::size_t> position_;
  std::unordered_set<std::string> biases_;
};

struct RuleContext {
  const onnx::Model& model;
  const graph::Index& index;
  const graph::ValueTypes& types;
  const QuantConfig& config;
  Marks& marks;
  Placement& placement;
  std::unordered_set<std::string> left_operands;  // what matrix products read as their first input
};

std::unordered_set<std::string> left_operands(const onnx::Model& model);

/// Marks what the node at `position` needs.
void apply_rule(RuleContext& context, std::size_t position);

/// Whether runtimes compute the node in float alone, since their integer kernels lack its attributes: an AveragePool
/// with dilations, and cubic interpolation.
bool is_float_kernel(const onnx::Node& node);

}  // namespace detent::quantization
