// Blocks of small floats, and of integers whose scales are powers of two: the OCP Microscaling formats (MXFP8, MXFP4,
// MXINT8), NVFP4 and floats of 8 bits, as DequantizeLinear reads them.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "onnx/tensor.h"
#include "quantization/blocks/blocks.h"

namespace detent::quantization {

/// What each code of the format's elements stands for, before its scale: integers without their offset, and floats.
/// Codes that stand for no finite number have 0.
std::array<float, 256> element_values(const BlockFormat& format) noexcept;

/// Scales and nearest elements of columns of `rows` finite values each, which follow one another; the format is none
/// that is_plain(), and symmetric. Each block has the scale that brings its largest value to the largest element; of
/// float8e8m0 the power of two 2^(floor(log2 m) - e), where m is the largest value and e the exponent of the largest
/// element (OCP Microscaling Formats 1.0, section 6.3), so that values beyond the largest element become that.
/// `search`: of several scales nearby the one with the least squared error.
BlockWeight element_blocks(std::span<const float> columns, std::int64_t rows, const BlockFormat& format, bool search);

/// The nearest elements to value / scale; the code of 0 where the scale is 0.
void round_elements(std::span<const float> values, float scale, const BlockFormat& format, std::uint8_t* elements);

/// The byte that a scale is stored as, which such blocks have.
std::uint8_t scale_code(float scale, const BlockFormat& format) noexcept;

/// What float8e4m3fn scales of all blocks are multiplied by, so that the largest of them is the largest of its type.
/// `largest` is the largest absolute value of the weight; 1 where that is 0.
float common_scale(float largest, const BlockFormat& format) noexcept;

}  // namespace detent::quantization
