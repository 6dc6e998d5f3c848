// The 16-bit floating-point types. Rounding is to the nearest, halves to even, as IEEE 754 has it.
#pragma once

#include <bit>
#include <cstdint>

namespace detent::onnx {

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

}  // namespace detent::onnx
