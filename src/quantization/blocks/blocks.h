// Weights cut into blocks, each with a scale and an integer zero point: what MatMulNBits, GatherBlockQuantized and
// DequantizeLinear with a block_size store.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "detent/config.h"
#include "onnx/tensor.h"
#include "onnx/wire.h"

namespace detent::quantization {

/// How the columns of a weight become integers. Integers and zero points are in [0, 2^bits). Instead of integers there
/// may be the codes of floats, which have no zero points.
struct BlockFormat {
  int bits = 4;             // 2, 4 or 8
  std::int64_t block = 32;  // neighbours along a column that share a scale; 0: all of it
  bool symmetric = true;    // every zero point is the middle, 2^(bits-1)
  /// A type that is_float(), or undefined: integers.
  std::optional<QuantType> floats = {};
  ScaleType scales = ScaleType::as_weight;
  /// Of float8e4m3fn scales: what all of them are multiplied by.
  float common_scale = 1;

  constexpr int largest() const noexcept { return (1 << bits) - 1; }
  constexpr int middle() const noexcept { return 1 << (bits - 1); }
  /// What is stored for 0.
  constexpr int zero() const noexcept { return floats ? 0 : middle(); }
  /// Whether blocks are integers with scales of the weight's type, as MatMulNBits has them.
  constexpr bool is_plain() const noexcept { return !floats && scales == ScaleType::as_weight; }
  constexpr std::int64_t block_of(std::int64_t rows) const noexcept {
    return block > 0 ? block : std::max(rows, std::int64_t{1});
  }
  /// Blocks in a column of so many values. The last one may be shorter than the others.
  constexpr std::int64_t blocks_of(std::int64_t rows) const noexcept {
    return (rows + block_of(rows) - 1) / block_of(rows);
  }
  friend constexpr bool operator==(const BlockFormat&, const BlockFormat&) = default;
};

/// Some or all columns of a weight W [rows, all columns] of a product x·W, column by column:
/// W[k][n] = scales[n][b] * (integers[n][k] - zero_points[n][b]), where b = k / block, or, of floats, scales[n][b]
/// times what the code stands for. Columns do not depend on one another, so a weight may be worked on in stripes of
/// columns.
struct BlockWeight {
  std::int64_t rows = 0;     // the length that products sum over, "K"
  std::int64_t columns = 0;  // "N"
  BlockFormat format;
  std::vector<std::uint8_t> integers;     // [columns, rows]
  std::vector<float> scales;              // [columns, blocks]; 0 or -0: all values of the block are 0
  std::vector<std::uint8_t> zero_points;  // [columns, blocks], also where symmetric

  std::int64_t blocks() const noexcept { return format.blocks_of(rows); }
};

/// A constant matrix that is stored in blocks.
struct BlockTensor {
  std::size_t initializer = 0;
  std::int64_t rows = 0;     // that products sum over; along which blocks lie
  std::int64_t columns = 0;  // outputs of a product, entries of a table
  bool by_columns = false;   // a column's values follow one another in the tensor; else its rows' do
  BlockFormat format;
  onnx::DataType type = onnx::DataType::float32;  // of the weight, and so of scales
  /// Nodes that read it in blocks, ascending.
  std::vector<std::size_t> products;  // MatMul, Gemm
  std::vector<std::size_t> tables;    // Gather
  /// Conv, ConvTranspose, LSTM, GRU, MoE, products with stacks of matrices: nodes, and which of their inputs it is.
  /// They read it through a DequantizeLinear whatever the form, but for as_experts; filters of more than a pixel with a
  /// scale for each index of their first axis.
  std::vector<std::pair<std::size_t, std::size_t>> others;
  /// Whether the one of `others` is a MoE node that becomes QMoE.
  bool as_experts = false;
  /// Whether tables and products read the same integers, which are stored once.
  bool shared = false;
  /// Whether its blocks are those of blocks_on_grids(), so that its products also read the sums of their inputs'
  /// blocks.
  bool on_grids = false;
  /// Whether other nodes, bodies or the graph's outputs read it as well, so that it stays.
  bool stays = false;
  /// What is stored is the weight times these, one for each row and one for each column, see block_weights.h; empty: 1.
  std::vector<float> row_factors = {}, column_factors = {};

  /// All nodes that read it in blocks, products first.
  std::vector<std::size_t> readers() const {
    auto nodes = products;
    nodes.insert(nodes.end(), tables.begin(), tables.end());
    for (const auto& [node, input] : others) nodes.push_back(node);
    return nodes;
  }
  /// Filled up to whole blocks, as tables are stored.
  std::int64_t whole_rows() const { return format.blocks_of(rows) * format.block_of(rows); }
  /// Of what is stored.
  std::int64_t stored_rows() const { return on_grids ? rows + format.blocks_of(rows) : rows; }
};

/// All of the right size, with scales 0 and the middle everywhere.
BlockWeight make_blocks(std::int64_t rows, std::int64_t columns, const BlockFormat& format);

struct BlockScale {
  float scale = 0;
  std::uint8_t zero_point = 0;
};

/// Scale and zero point of a block with these extremes, as ONNX Runtime's MatMulNBitsQuantizer has them with its
/// algorithm DEFAULT (onnxruntime/core/mlas/lib/q4_dq.cpp): symmetric -m / 2^(bits-1), where m is the value farther
/// from zero, with its sign; else (max - min) / (2^bits - 1) over a range that includes zero. Throws bad_input where
/// the range exceeds float32.
BlockScale block_scale(float min, float max, const BlockFormat& format);

/// The nearest integers: clip(round_half_away(value * (1 / scale) + zero_point)) in float32; the zero point where the
/// scale is 0. `integers` has as many elements as `values`.
void round_block(std::span<const float> values, BlockScale scale, int bits, std::uint8_t* integers);

/// Scales, zero points and nearest integers of columns of `rows` finite values each, which follow one another. The
/// same bytes as ONNX Runtime's algorithm DEFAULT makes, for 2, 4 and 8 bits.
BlockWeight nearest(std::span<const float> columns, std::int64_t rows, const BlockFormat& format);

/// The values that are stored, column by column: `values` has rows * columns elements.
void dequantize(const BlockWeight& weight, std::span<float> values);

// How the integers of blocks lie in memory: packed bits, and the orders that MatMulNBits, GatherBlockQuantized
// (com.microsoft, docs/ContribOperators.md of ONNX Runtime) and DequantizeLinear (ONNX, opset 21) read.

/// Bytes that so many integers take, the last one filled up.
constexpr std::size_t packed_bytes(std::size_t count, int bits) noexcept {
  return (count * static_cast<std::size_t>(bits) + 7) / 8;
}

/// Integers of 2, 4 or 8 bits one after another, the first in the lowest bits of a byte. Bits that are left are 0.
/// `packed` has packed_bytes() elements.
void pack(std::span<const std::uint8_t> integers, int bits, std::byte* packed);

/// For each column its blocks, each of them whole: the last one is filled up with 0, as ONNX Runtime does. MatMulNBits'
/// B, and, where blocks divide the columns, GatherBlockQuantized's data and a DequantizeLinear's along the last axis.
std::vector<std::byte> packed_columns(const BlockWeight& weight);

/// For each column its zero points, which begin at a byte of their own; the last byte is filled up with the middle, as
/// ONNX Runtime does.
std::vector<std::byte> packed_zero_points(const BlockWeight& weight);

/// A matrix of integers [rows, all columns], row by row and packed throughout, that columns are put into: the data and
/// the zero points of a DequantizeLinear along axis 0.
class PackedRows {
 public:
  /// All 0.
  PackedRows(std::int64_t rows, std::int64_t columns, int bits);
  /// `integers` are whole columns, one after another, from column `first` on; `offset` is taken from each of them: the
  /// middle, for types with a sign.
  void put(std::int64_t first, std::span<const std::uint8_t> integers, int offset);
  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::int64_t rows_, columns_;
  int bits_;
  std::vector<std::byte> bytes_;
};

// Blocks of small floats, and of integers whose scales are powers of two: the OCP Microscaling formats (MXFP8, MXFP4,
// MXINT8), NVFP4 and floats of 8 bits, as DequantizeLinear reads them.

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
