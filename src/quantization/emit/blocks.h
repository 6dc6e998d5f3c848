// Weights in blocks: MatMulNBits and GatherBlockQuantized, or DequantizeLinear with a block size.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "detent/config.h"
#include "onnx/model.h"
#include "quantization/blocks/block_stream.h"
#include "quantization/blocks/block_weights.h"

namespace detent::quantization {

/// Told of each weight when its integers have been written: its position in the placement, and its errors.
using BlocksWritten = std::function<void(std::size_t tensor, const BlockErrors& errors)>;

/// `streams` are those of the placement's tensors. Integers are found when the model is written, and, as long as its
/// tensors are written in their order, once. A Gemm becomes MatMulNBits with a bias, or keeps its DequantizeLinear with
/// the weight transposed. Each product gets a DequantizeLinear with initializers of its own, since ONNX Runtime (1.28
/// and later) fuses no others; they share their data. Throws bad_input where the model's opset has no such
/// DequantizeLinear. MatMulNBits has no blocks of whole columns.
onnx::Model emit_blocks(onnx::Model model, const BlockPlacement& placement, std::vector<BlockStream> streams,
                        const WeightsOnlyConfig& config, BlocksWritten written = {});

/// The opset of ONNX whose DequantizeLinear has blocks of so many bits.
std::int64_t opset_of_blocks(const BlockFormat& format) noexcept;

}  // namespace detent::quantization
