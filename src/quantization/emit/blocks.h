// Weights in blocks: MatMulNBits and GatherBlockQuantized, or DequantizeLinear with a block size.
#pragma once

#include <cstdint>

#include "quantization/assignment.h"
#include "quantization/blocks/blocks.h"
#include "quantization/emit/barriers.h"

namespace detent::quantization {

/// Writes Assignment::blocks. Integers are found when the model is written, and, as long as its
/// tensors are written in their order, once. A Gemm becomes MatMulNBits with a bias, or keeps its DequantizeLinear with
/// the weight transposed. Each product gets a DequantizeLinear with initializers of its own, since ONNX Runtime (1.28
/// and later) fuses no others; they share their data. Throws bad_input where the model's opset has no such
/// DequantizeLinear. MatMulNBits has no blocks of whole columns.
Emitted emit_blocks(FloatModel model, const Assignment& assignment);

/// The opset of ONNX whose DequantizeLinear has blocks of so many bits.
std::int64_t opset_of_blocks(const BlockFormat& format) noexcept;

}  // namespace detent::quantization
