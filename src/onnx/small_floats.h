// The floating-point types of 8 and 4 bits, as ONNX has them (docs/onnx: "Float stored in 8 bits", "Float stored in 4
// bits"; OCP Microscaling Formats 1.0). Rounding is to the nearest, halves to even; values beyond the largest become
// the largest.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace detent::onnx {

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
