// Weights that are better not stored in blocks: which ONNX Runtime does not load or computes wrongly, or that stay as
// large.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "detent/config.h"
#include "onnx/model.h"
#include "quantization/blocks/block_weights.h"

namespace detent::quantization {

/// Why a node cannot read a weight of so many columns from blocks of so many bits; empty: it can.
std::string reason_against_blocks(const onnx::Node& node, WeightForm form, int bits, std::int64_t columns);

/// What `columns` of so many rows take in blocks.
std::uint64_t bytes_in_blocks(const onnx::Tensor& weight, std::int64_t rows, std::int64_t columns,
                              const BlockFormat& format);
/// Whether `columns` of so many rows in blocks take at most half of float32, or three quarters of 16-bit floats.
bool makes_much_smaller(const onnx::Tensor& weight, std::int64_t rows, std::int64_t columns, const BlockFormat& format);

/// Why a weight in blocks is in the file more than once, or stays beside them.
std::vector<std::string> notes_of_copies(const onnx::Model& model, const BlockTensor& tensor, WeightForm form);

}  // namespace detent::quantization
