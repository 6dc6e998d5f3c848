#include "quantization/blocks/block_layout.h"

#include <algorithm>

namespace detent::quantization {

void pack(std::span<const std::uint8_t> integers, int bits, std::byte* packed) {
  const std::size_t in_byte = 8 / static_cast<std::size_t>(bits);
  const std::size_t whole = integers.size() / in_byte;
  const std::uint8_t* in = integers.data();
  if (bits == 8) {
    for (std::size_t i = 0; i < whole; ++i) packed[i] = std::byte{in[i]};
  } else if (bits == 4) {
    for (std::size_t i = 0; i < whole; ++i) packed[i] = static_cast<std::byte>(in[2 * i] | in[2 * i + 1] << 4);
  } else {
    for (std::size_t i = 0; i < whole; ++i)
      packed[i] = static_cast<std::byte>(in[4 * i] | in[4 * i + 1] << 2 | in[4 * i + 2] << 4 | in[4 * i + 3] << 6);
  }
  if (whole * in_byte == integers.size()) return;
  int last = 0;
  for (std::size_t i = whole * in_byte, shift = 0; i < integers.size(); ++i, shift += static_cast<std::size_t>(bits))
    last |= in[i] << shift;
  packed[whole] = static_cast<std::byte>(last);
}

std::vector<std::byte> packed_columns(const BlockWeight& weight) {
  const auto rows = static_cast<std::size_t>(weight.rows);
  const auto block = static_cast<std::size_t>(weight.format.block_of(weight.rows));
  const auto blocks = static_cast<std::size_t>(weight.blocks());
  const int bits = weight.format.bits;
  const std::size_t block_bytes = packed_bytes(block, bits);
  std::vector<std::byte> packed(static_cast<std::size_t>(weight.columns) * blocks * block_bytes);
  std::vector<std::uint8_t> whole(block);
  std::byte* out = packed.data();
  for (std::size_t n = 0; n < static_cast<std::size_t>(weight.columns); ++n) {
    for (std::size_t b = 0; b < blocks; ++b, out += block_bytes) {
      const std::uint8_t* integers = weight.integers.data() + n * rows + b * block;
      const std::size_t length = std::min(block, rows - b * block);
      if (length < block) {
        std::fill(std::copy_n(integers, length, whole.begin()), whole.end(), std::uint8_t{0});
        integers = whole.data();
      }
      pack({integers, block}, bits, out);
    }
  }
  return packed;
}

std::vector<std::byte> packed_zero_points(const BlockWeight& weight) {
  const auto blocks = static_cast<std::size_t>(weight.blocks());
  const std::size_t column_bytes = packed_bytes(blocks, weight.format.bits);
  std::vector<std::byte> packed(static_cast<std::size_t>(weight.columns) * column_bytes);
  std::vector<std::uint8_t> column(column_bytes * 8 / static_cast<std::size_t>(weight.format.bits),
                                   static_cast<std::uint8_t>(weight.format.middle()));
  for (std::size_t n = 0; n < static_cast<std::size_t>(weight.columns); ++n) {
    std::copy_n(weight.zero_points.begin() + static_cast<std::ptrdiff_t>(n * blocks), blocks, column.begin());
    pack(column, weight.format.bits, &packed[n * column_bytes]);
  }
  return packed;
}

PackedRows::PackedRows(std::int64_t rows, std::int64_t columns, int bits)
    : rows_(rows),
      columns_(columns),
      bits_(bits),
      bytes_(packed_bytes(static_cast<std::size_t>(rows * columns), bits)) {}

// Columns in stripes, so that the bytes of a row that they share are at hand.
void PackedRows::put(std::int64_t first, std::span<const std::uint8_t> integers, int offset) {
  constexpr std::int64_t kStripe = 64;
  const auto count = rows_ > 0 ? static_cast<std::int64_t>(integers.size()) / rows_ : 0;
  const auto bits = static_cast<std::size_t>(bits_);
  const unsigned mask = (1U << bits) - 1;
  for (std::int64_t begin = 0; begin < count; begin += kStripe) {
    const std::int64_t end = std::min(begin + kStripe, count);
    for (std::int64_t k = 0; k < rows_; ++k) {
      for (std::int64_t n = begin; n < end; ++n) {
        const auto bit = static_cast<std::size_t>(k * columns_ + first + n) * bits;
        const auto value = static_cast<unsigned>(integers[static_cast<std::size_t>(n * rows_ + k)] - offset) & mask;
        bytes_[bit / 8] |= static_cast<std::byte>(value << bit % 8);
      }
    }
  }
}

}  // namespace detent::quantization
