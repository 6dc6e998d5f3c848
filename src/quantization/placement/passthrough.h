// Selective calibration: values that need no observation because an earlier value has the same statistics.
#pragma once

#include <set>
#include <string>

#include "detent/config.h"
#include "graph/index.h"
#include "graph/values.h"

namespace detent::quantization {

/// Operator types whose first output is given the statistics of the first input: those that move each value to exactly
/// one place, for which that is exact, and those that the configuration adds. Throws usage for an added type that the
/// model does not have.
std::set<std::string> passthrough_types(const onnx::Model& model, const QuantConfig& config);

/// The earliest value that has the statistics of `value`: itself, or one that reaches it through nodes of `types` only.
std::string statistics_source(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                              const std::set<std::string>& passthrough, const std::string& value);

}  // namespace detent::quantization
