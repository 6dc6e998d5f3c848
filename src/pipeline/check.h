// check() of a model in memory, and what a run says of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/check.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/placement/placement.h"

namespace detent::pipeline {

/// The target is a name that is known; nodes are in topological order.
CheckResult check_model(const std::string& target, const onnx::Model& model, const graph::ValueTypes& types);

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

/// With types from the runtime, in a process of its own: also of values that its CPU has no kernels for, which are
/// bfloat16 and block floats. Multiplications are counted with the `shapes` of inputs where these are given.
CheckResult check_model(const std::string& target, const onnx::Model& model, const exec::Runtime& runtime,
                        const Shapes& shapes = {}, const std::stop_token& stop = {});

/// What the target makes of a quantized model as it stands in a file.
struct TargetNotes {
  std::vector<std::string> lines;      // how many nodes it runs, and which fall back or are refused
  std::optional<double> integer_macs;  // share of the multiplications; unset where shapes are not known
};
/// Nothing where the target is ONNX Runtime on a CPU, which runs every model. To be told before the file takes its
/// name: throws device where the runtime dies of the model.
TargetNotes target_notes(const QuantizeOptions& options, const std::filesystem::path& quantized,
                         const exec::Runtime& runtime, const Shapes& shapes = {});

/// The share of a model's multiplications that ONNX Runtime's CPU computes on integers; nullopt: shapes are not known.
/// The pairs stand as such: no operators on integers. Throws as target_notes() does.
std::optional<double> integers_on_cpu(const QuantizeOptions& options, onnx::Model model, const exec::Runtime& runtime,
                                      const Shapes& shapes);

/// target_notes() before anything is calibrated: of the pairs as placed, with made-up scales.
TargetNotes target_notes(const QuantizeOptions& options, const onnx::Model& model,
                         const quantization::Placement& placement, const exec::Runtime& runtime);

}  // namespace detent::pipeline
