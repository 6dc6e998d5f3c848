// Numbers of fewer bits than a C++ type has: 16-bit floats, smaller floats, integers of 4 bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace detent::onnx {

// The 16-bit floating-point types. Rounding is to the nearest, halves to even, as IEEE 754 has it.

/// Values from 65520 on become infinite.
inline std::uint16_t to_float16(float value) noexcept {
  constexpr std::uint32_t kInfinity = 0xffU << 23, kTooLarge = 143U << 23, kNormal = 113U << 23, kShift = 126U << 23;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t special = magnitude > kInfinity ? 0x7e00U : 0x7c00U;
  // The sum's last mantissa bit is the smallest subnormal, so that it rounds there.
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - kShift;
  const std::uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  const std::uint32_t half = magnitude >= kTooLarge ? special : magnitude < kNormal ? subnormal : normal;
  return static_cast<std::uint16_t>(half | (bits >> 16 & 0x8000U));
}

inline float from_float16(std::uint16_t half) noexcept {
  const std::uint32_t magnitude = half & 0x7fffU;
  // Scaling by a power of two turns subnormals into normal numbers; infinities and NaN get the largest exponent.
  const float scaled = std::bit_cast<float>(magnitude << 13) * std::bit_cast<float>((254U - 15U) << 23);
  const std::uint32_t special = magnitude >= 0x7c00U ? 0xffU << 23 : 0;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | (half & 0x8000U) << 16);
}

inline std::uint16_t to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(is_nan ? (bits >> 16) | 0x40U : rounded);
}

inline float from_bfloat16(std::uint16_t value) noexcept { return std::bit_cast<float>(std::uint32_t{value} << 16); }

// 4-bit integers, two in a byte: the first in the low half. An odd count leaves the last high half 0.

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

// The floating-point types of 8 and 4 bits, as ONNX has them (docs/onnx: "Float stored in 8 bits", "Float stored in 4
// bits"; OCP Microscaling Formats 1.0). Rounding is to the nearest, halves to even; values beyond the largest become
// the largest.

/// A sign, exponent bits, and mantissa bits. Subnormal values as in IEEE 754.
struct SmallFloat {
  int exponent_bits = 4;
  int mantissa_bits = 3;
  float largest = 448;

  constexpr int bias() const noexcept { return (1 << (exponent_bits - 1)) - 1; }
  constexpr int bits() const noexcept { return 1 + exponent_bits + mantissa_bits; }
};

inline constexpr SmallFloat kFloat8E4M3FN{4, 3, 448};
inline constexpr SmallFloat kFloat8E5M2{5, 2, 57344};
inline constexpr SmallFloat kFloat4E2M1{2, 1, 6};

/// Of a finite value.
inline std::uint8_t to_small_float(float value, const SmallFloat& type) noexcept {
  const auto power = [](int exponent) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(127 + exponent) << 23);
  };
  const std::uint32_t sign = std::bit_cast<std::uint32_t>(value) >> 31 << (type.bits() - 1);
  const float absolute = std::fabs(value);
  const float magnitude = absolute < type.largest ? absolute : type.largest;
  const int shift = 23 - type.mantissa_bits;
  // The sum's last mantissa bit is the smallest subnormal, so that it rounds there.
  const float magic = power(24 - type.bias() - type.mantissa_bits);
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(magnitude + magic) - std::bit_cast<std::uint32_t>(magic);
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  const std::uint32_t half = (1U << (shift - 1)) - 1 + (bits >> shift & 1U);
  const std::uint32_t normal = (bits - (static_cast<std::uint32_t>(127 - type.bias()) << 23) + half) >> shift;
  const bool is_normal = magnitude >= power(1 - type.bias());
  return static_cast<std::uint8_t>(sign | (is_normal ? normal : subnormal));
}

/// Of a code that is neither infinite nor NaN.
inline float from_small_float(std::uint8_t code, const SmallFloat& type) noexcept {
  const int mantissa = code & ((1 << type.mantissa_bits) - 1);
  const int exponent = code >> type.mantissa_bits & ((1 << type.exponent_bits) - 1);
  const int implied = exponent > 0 ? 1 << type.mantissa_bits : 0;
  const int power = (exponent > 0 ? exponent : 1) - type.bias() - type.mantissa_bits;
  const float magnitude = std::ldexp(static_cast<float>(implied + mantissa), power);
  return (code >> (type.bits() - 1) & 1) != 0 ? -magnitude : magnitude;
}

/// float8e8m0 has powers of two alone: 2^(code - 127), code 0 to 254.
inline std::uint8_t to_float8e8m0(int exponent) noexcept {
  return static_cast<std::uint8_t>(exponent < -127 ? 0 : exponent > 127 ? 254 : exponent + 127);
}
inline float from_float8e8m0(std::uint8_t code) noexcept { return std::ldexp(1.0F, code - 127); }

}  // namespace detent::onnx
