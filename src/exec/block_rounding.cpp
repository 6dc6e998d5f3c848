#include "exec/block_rounding.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"

namespace detent::exec {
namespace {

constexpr int kBias = 127, kInfinite = 255, kMantissaBits = 23;
constexpr std::uint32_t kMantissa = (1U << kMantissaBits) - 1;

int exponent_field(float value) {
  return static_cast<int>(std::bit_cast<std::uint32_t>(value) >> kMantissaBits & 0xff);
}

int largest_field(std::span<const float> values) {
  int most = 0;
  for (const float value : values) most = std::max(most, exponent_field(value));
  return most;
}

// Infinities and NaN count as 0.
int largest_finite_field(std::span<const float> values) {
  int most = 0;
  for (const float value : values) {
    const int field = exponent_field(value);
    if (field != kInfinite) most = std::max(most, field);
  }
  return most;
}

float rounded(float value, HalfWay half_way) {
  switch (half_way) {
    case HalfWay::away: return std::round(value);
    case HalfWay::up: return value < 0 && value - std::floor(value) == 0.5F ? std::ceil(value) : std::round(value);
    case HalfWay::to_even: break;
  }
  return std::nearbyint(value);
}

// `mantissa` without its last bits, rounded, but not beyond `most`.
std::uint32_t without_tail(std::uint32_t mantissa, int tail_bits, std::uint32_t most, bool negative, HalfWay half_way) {
  if (tail_bits > kMantissaBits + 2) return 0;
  const std::uint32_t half = 1U << (tail_bits - 1), tail = mantissa & ((1U << tail_bits) - 1);
  const std::uint32_t kept = mantissa >> tail_bits;
  if (kept == most || tail < half) return kept;
  if (tail > half || half_way == HalfWay::away) return kept + 1;
  return half_way == HalfWay::up ? kept + (negative ? 0 : 1) : kept + kept % 2;
}

// The nearest number of a small floating-point type, ties to even; beyond the largest it is that.
float nearest_float(float value, const Microscaling& format) {
  if (value == 0) return value;
  const int smallest = 2 - (1 << (format.exponent_bits - 1));  // exponent of the smallest normal number
  const int exponent = std::max(std::ilogb(value), smallest);
  const float step = std::ldexp(1.0F, exponent - format.mantissa_bits);
  return std::clamp(std::nearbyint(value / step) * step, -format.largest, format.largest);
}

float nearest_integer(float value, HalfWay half_way, float largest) {
  constexpr float kStep = 1.0F / 64;
  return std::clamp(rounded(value / kStep, half_way), -largest - 1, largest) * kStep;
}

}  // namespace

Microscaling microscaling_of(std::string_view element_type) {
  if (element_type == "fp8_e5m2") return {5, 2, 15, 57344};
  if (element_type == "fp8_e4m3") return {4, 3, 8, 448};
  if (element_type == "fp6_e3m2") return {3, 2, 4, 28};
  if (element_type == "fp6_e2m3") return {2, 3, 2, 7.5F};
  if (element_type == "fp4_e2m1") return {2, 1, 2, 6};
  if (element_type == "int8") return {0, 8, 0, 127};
  throw bad_input(fmt::format("MXQuantizeDequantize has no element_dtype '{}'", element_type));
}

void round_block(const SharedExponent& format, std::span<float> block) {
  const int exponent = largest_finite_field(block) - kBias, bits = format.bit_width - 9;
  const float scale = std::ldexp(1.0F, exponent - (bits - 1));
  const auto largest = static_cast<float>(std::ldexp(1.0, exponent + 1) - static_cast<double>(scale));
  for (float& value : block) {
    if (exponent_field(value) == kInfinite) continue;
    value = std::clamp(rounded(value / scale, format.half_way) * scale, -largest, largest);
  }
}

void round_block(const Microexponents& format, std::span<float> block) {
  const int bits = format.bit_width - 9, shared = largest_field(block);
  for (std::size_t begin = 0; begin < block.size(); begin += format.part) {
    const auto part = block.subspan(begin, std::min(format.part, block.size() - begin));
    const int shift = std::min(shared - largest_field(part), (1 << format.shift_bits) - 1);
    for (float& value : part) {
      if (shared == kInfinite) {
        value = std::numeric_limits<float>::quiet_NaN();
        continue;
      }
      const int field = exponent_field(value);
      const bool negative = std::signbit(value);
      const std::uint32_t mantissa =
          field == 0 ? 0 : (std::bit_cast<std::uint32_t>(value) & kMantissa) | 1U << kMantissaBits;
      const int tail = shared - shift - field + kMantissaBits - bits + 1;
      const auto kept = without_tail(mantissa, tail, (1U << bits) - 1, negative, format.half_way);
      const double size = std::ldexp(static_cast<double>(kept), shared - kBias - shift + 1 - bits);
      value = static_cast<float>(negative ? -size : size);
    }
  }
}

void round_block(const Microscaling& format, std::span<float> block) {
  const float scale = std::ldexp(1.0F, largest_finite_field(block) - kBias - format.largest_exponent);
  for (float& value : block) {
    if (exponent_field(value) == kInfinite) continue;
    const float element = value / scale;
    value = scale * (format.exponent_bits > 0 ? nearest_float(element, format)
                                              : nearest_integer(element, format.half_way, format.largest));
  }
}

void for_each_block(std::span<const std::int64_t> shape, std::size_t axis, std::size_t size,
                    std::span<const float> values, std::span<float> out,
                    const std::function<void(std::span<float>)>& round) {
  std::size_t length = 1, inner = 1;
  if (!shape.empty()) length = static_cast<std::size_t>(shape[axis]);
  for (std::size_t d = axis + 1; d < shape.size(); ++d) inner *= static_cast<std::size_t>(shape[d]);
  if (values.empty()) return;
  const std::size_t rows = values.size() / (length * inner);
  std::vector<float> block(size);
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < inner; ++column) {
      for (std::size_t begin = 0; begin < length; begin += size) {
        const std::size_t count = std::min(size, length - begin);
        const std::size_t first = (row * length + begin) * inner + column;
        for (std::size_t i = 0; i < count; ++i) block[i] = values[first + i * inner];
        std::fill(block.begin() + static_cast<std::ptrdiff_t>(count), block.end(), 0.0F);
        round(block);
        for (std::size_t i = 0; i < count; ++i) out[first + i * inner] = block[i];
      }
    }
  }
}

}  // namespace detent::exec
