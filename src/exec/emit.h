// From a model to the bytes that the runtime is given: a graph of a few KiB whose large weights stay in their files.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx/functions.h"
#include "onnx/model.h"

namespace detent::exec {

struct EmitOptions {
  /// Values that get a tap, in this order: graph inputs, node outputs, and initializers (for the
  /// nodes of the main graph that read them).
  std::vector<std::string> taps;
  /// Replaces the model's outputs when not empty; types are left for the runtime to infer.
  std::vector<std::string> outputs;
  /// Static shapes for graph inputs, instead of what the model says.
  std::map<std::string, std::vector<std::int64_t>> input_shapes;
  /// Nodes, each by its first output, whose first input gets a tap as they read it: in a body it is handed over each
  /// time that the node runs, wherever it is made. They are counted behind `taps`.
  std::vector<std::string> readers = {};
  /// Where this process's open files are for the one that loads the model, below kExternalRoot.
  std::string descriptors = "proc/self/fd";
};

/// Weights are referred to as external data in the open files of this process (/proc/self/fd): give the session
/// kExternalRoot for them, and keep the model until it has loaded them.
std::string emit(const onnx::Model& model, const EmitOptions& options = {});
inline constexpr const char* kExternalRoot = "/";

/// Gives nodes names of their own, by which the runtime's profile and its graph know them.
void name_nodes(onnx::Model& model);

/// A model of just these nodes of `model` (indexes, in order) with no inputs: all they read must be initializers or
/// made by them. `outputs` become its outputs.
onnx::Model constant_part(const onnx::Model& model, const std::vector<int>& nodes,
                          const std::vector<std::string>& outputs);

/// Domain and operator name; the operator's one attribute is `index`.
inline constexpr const char* kTapDomain = onnx::kPrivateDomain;
inline constexpr const char* kTapOperator = "Tap";

}  // namespace detent::exec
