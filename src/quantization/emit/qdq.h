// The Q/DQ form: pairs of QuantizeLinear and DequantizeLinear, also around a KV cache, and the way back to the values
// that they stand for.
#pragma once

#include <string>
#include <unordered_map>

#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/assignment.h"
#include "quantization/emit/barriers.h"

namespace detent::quantization {

// The Q/DQ form: QuantizeLinear/DequantizeLinear pairs, integer weights and biases behind a DequantizeLinear.

/// Names of new nodes and values carry ONNX Runtime's suffixes. Weights are quantized when the model is written. Under
/// the preset `balanced` what is left in float stays there in ONNX Runtime, too (barriers.h).
Emitted emit_qdq(FloatModel model, const Assignment& assignment);

// The way back from a quantized model to the values of the float model that it was made of.

/// For each value that goes through a QuantizeLinear and a DequantizeLinear: what the latter makes of it, by the name
/// of the value. Follows the graph, not names, so that it works for models of any tool.
std::unordered_map<std::string, std::string> dequantized_values(const onnx::Model& quantized,
                                                                const graph::Index& index);

// The cache of keys and values in fewer bits, as GroupQueryAttention of ONNX Runtime has it.

/// Gives each attention the scales of Assignment::cache, and graph inputs and outputs of its cache their new type; 4
/// bits are packed two by two along the channels.
Emitted emit_kv_cache(FloatModel model, const Assignment& assignment);

}  // namespace detent::quantization
