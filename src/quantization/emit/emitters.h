// What writes an assignment into a model: one function for each form, of the same signature, and the way back from the
// Q/DQ form. Dynamic scales and operators on integers have headers of their own.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/assignment.h"
#include "quantization/blocks/blocks.h"
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

// Weights in blocks: MatMulNBits and GatherBlockQuantized, or DequantizeLinear with a block size.

/// Writes Assignment::blocks. Integers are found when the model is written, and, as long as its
/// tensors are written in their order, once. A Gemm becomes MatMulNBits with a bias, or keeps its DequantizeLinear with
/// the weight transposed. Each product gets a DequantizeLinear with initializers of its own, since ONNX Runtime (1.28
/// and later) fuses no others; they share their data. Throws bad_input where the model's opset has no such
/// DequantizeLinear. MatMulNBits has no blocks of whole columns.
Emitted emit_blocks(FloatModel model, const Assignment& assignment);

/// The opset of ONNX whose DequantizeLinear has blocks of so many bits.
std::int64_t opset_of_blocks(const BlockFormat& format) noexcept;

// 16-bit floating point: float16 or bfloat16 nodes, weights and values, with casts where they meet float32.

/// Gives the nodes that Assignment::floats names another type. Each value is cast once, where it is made; constants are
/// stored in the types that their readers want, converted when the model is written. A value of a changed type keeps
/// its name unless it is a graph input or output that keeps its own type, or a body reads it: then the new one is
/// "NAME_float16". The types of all values are known.
Emitted emit_floats(FloatModel model, const Assignment& assignment);

// The form with block floats: an operator of AMD Quark's behind each value and constant, which rounds it.

/// Rounds what Assignment::placement marks to its block_float. Blocks lie along the axis that a product adds up, or
/// that Softmax works on; else along axis 1, or the last of what a MatMul made. A value whose readers want different
/// axes gets an operator for each. Weights stay as they are in the file. Names are those that Quark gives.
Emitted emit_block_floats(FloatModel model, const Assignment& assignment);

}  // namespace detent::quantization
