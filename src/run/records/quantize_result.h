// What the result of a run tells of the assignment.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "detent/quantize.h"
#include "onnx/model.h"
#include "quantization/assignment.h"

namespace detent::run {

/// Of nodes: those that compute on integers; and all other products, in bodies as well, with what else was selected.
struct NodeCounts {
  std::size_t quantized = 0;
  std::size_t in_float = 0;
  std::vector<std::string> notes;  // where bodies hold products
};

/// `has_integers` tells of a value or constant whether it is stored as integers.
NodeCounts count_nodes(const onnx::Model& model, const quantization::Placement& placement,
                       const std::function<bool(const std::string&)>& has_integers);

/// The same where all that is placed is.
NodeCounts count_nodes(const onnx::Model& model, const quantization::Placement& placement);

/// Counts nodes and records scale, zero point, range and method of each activation.
void record_assignment(const onnx::Model& model, const quantization::Assignment& assignment, QuantizeResult& result);

/// Notes that concern this machine only: the model is the same wherever it is made.
std::vector<std::string> notes_for_this_machine(const QuantConfig& config);

}  // namespace detent::run
