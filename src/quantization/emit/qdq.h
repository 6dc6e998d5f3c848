// The Q/DQ form: pairs of QuantizeLinear and DequantizeLinear, also around a KV cache, and the way back to the values
// that they stand for.
#pragma once

#include <span>
#include <string>
#include <unordered_map>

#include "detent/config.h"
#include "detent/quantize.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/assignment.h"
#include "quantization/emit/barriers.h"

namespace detent::quantization {

// The Q/DQ form: QuantizeLinear/DequantizeLinear pairs, integer weights and biases behind a DequantizeLinear.

/// `model` is the float model that the assignment is of. Names of new nodes and values carry ONNX Runtime's suffixes.
/// Weights are quantized when the model is written. Under the preset `balanced` what is left in float stays there in
/// ONNX Runtime, too (barriers.h).
Emitted emit_qdq(onnx::Model model, const Assignment& assignment, const QuantConfig& config,
                 const graph::ValueTypes& types = {});

// The way back from a quantized model to the values of the float model that it was made of.

/// For each value that goes through a QuantizeLinear and a DequantizeLinear: what the latter makes of it, by the name
/// of the value. Follows the graph, not names, so that it works for models of any tool.
std::unordered_map<std::string, std::string> dequantized_values(const onnx::Model& quantized,
                                                                const graph::Index& index);

// The cache of keys and values in fewer bits, as GroupQueryAttention of ONNX Runtime has it.

/// Gives each attention its scales, and graph inputs and outputs of its cache their new type; 4 bits are packed two by
/// two along the channels. `scales` are those of graph::cached_attentions(), in their order.
void emit_kv_cache(onnx::Model& model, const KvCacheConfig& config, std::span<const KvScales> scales);

}  // namespace detent::quantization
