// How the integers of blocks lie in memory: packed bits, and the orders that MatMulNBits, GatherBlockQuantized
// (com.microsoft, docs/ContribOperators.md of ONNX Runtime) and DequantizeLinear (ONNX, opset 21) read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quantization/blocks/blocks.h"

namespace detent::quantization {

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

}  // namespace detent::quantization
