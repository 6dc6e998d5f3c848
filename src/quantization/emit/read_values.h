// The way back from a quantized model to the values of the float model that it was made of.
#pragma once

#include <string>
#include <unordered_map>

#include "graph/index.h"
#include "onnx/model.h"

namespace detent::quantization {

/// For each value that goes through a QuantizeLinear and a DequantizeLinear: what the latter makes of it, by the name
/// of the value. Follows the graph, not names, so that it works for models of any tool.
std::unordered_map<std::string, std::string> dequantized_values(const onnx::Model& quantized,
                                                                const graph::Index& index);

}  // namespace detent::quantization
