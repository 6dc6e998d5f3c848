// 4-bit integers, two in a byte: the first in the low half. An odd count leaves the last high half 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace detent::onnx {

/// Appends the low four bits of each value. Only the last call for a tensor may bring an odd count.
template <class Int>
void append_nibbles(std::span<const Int> values, std::vector<std::byte>& out) {
  const auto nibble = [&](std::size_t i) { return static_cast<std::uint32_t>(values[i]) & 0xfU; };
  std::size_t i = 0;
  for (; i + 1 < values.size(); i += 2) out.push_back(static_cast<std::byte>(nibble(i) | nibble(i + 1) << 4));
  if (i < values.size()) out.push_back(static_cast<std::byte>(nibble(i)));
}

template <class Int>
std::vector<std::byte> packed_nibbles(std::span<const Int> values) {
  std::vector<std::byte> out;
  out.reserve((values.size() + 1) / 2);
  append_nibbles(values, out);
  return out;
}

/// The value at a position, its sign extended when `is_signed`.
inline int nibble_at(std::span<const std::byte> bytes, std::size_t position, bool is_signed) {
  const auto byte = static_cast<int>(bytes[position / 2]);
  const int value = position % 2 == 0 ? byte & 0xf : byte >> 4;
  return is_signed && value > 7 ? value - 16 : value;
}

}  // namespace detent::onnx
