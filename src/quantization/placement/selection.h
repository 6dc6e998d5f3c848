// Which nodes the user wants quantized.
#pragma once

#include <string>
#include <vector>

#include "detent/config.h"
#include "onnx/model.h"

namespace detent::quantization {

/// Operator types that are quantized when the user names none: those of ONNX Runtime's quantize_static.
const std::vector<std::string>& default_op_types();

/// Throws usage, naming the option, for an operator type that neither the model nor the default list has.
void check_op_types(const onnx::Model& model, const std::vector<std::string>& types, const char* option);

/// One flag for each node. Throws usage for a name, pattern or operator type that matches nothing, and for a bad
/// pattern: a misspelt exclusion must not pass in silence.
std::vector<bool> select_nodes(const onnx::Model& model, const QuantConfig& config);

/// Nodes that a name or pattern matches, ascending. Throws usage, naming the option, where there is none.
std::vector<std::size_t> match_nodes(const onnx::Model& model, const std::string& entry, const char* option);

/// The same without LSTM, whose integer form has dynamic activations (dynamic.h).
std::vector<bool> select_static_nodes(const onnx::Model& model, const QuantConfig& config);

/// The same where the user who names no types means all that the model has.
std::vector<bool> select_of_all_types(const onnx::Model& model, const QuantConfig& config);

}  // namespace detent::quantization
