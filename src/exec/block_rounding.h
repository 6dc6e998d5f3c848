// Rounding to formats of neighbouring numbers that share an exponent: the arithmetic of AMD Quark's operators
// BFPQuantizeDequantize and MXQuantizeDequantize.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace detent::exec {

/// How a number in the middle between two others is rounded.
enum class HalfWay { away = 0, up = 1, to_even = 2 };

/// Numbers with one exponent and mantissas of bit_width - 9 bits besides the sign ("to_bfp"). Infinities and NaN stay.
struct SharedExponent {
  int bit_width = 16;
  HalfWay half_way = HalfWay::to_even;
};

/// The same, and parts of the block shift theirs by up to 2^shift_bits - 1 ("to_bfp_prime"). A block with an infinity
/// or NaN is NaN, and subnormal numbers are 0.
struct Microexponents {
  int bit_width = 13;
  std::size_t part = 2;
  int shift_bits = 1;
  HalfWay half_way = HalfWay::to_even;
};

/// Elements of a small floating-point type, or of 8-bit integers where it has no exponent, times a power of two.
/// Infinities and NaN stay.
struct Microscaling {
  int exponent_bits = 0;
  int mantissa_bits = 8;
  int largest_exponent = 0;
  float largest = 127;
  HalfWay half_way = HalfWay::to_even;  // of integers; floats are rounded to even
};

/// "fp8_e5m2", "fp8_e4m3", "fp6_e3m2", "fp6_e2m3", "fp4_e2m1", "int8". Throws bad_input for others.
Microscaling microscaling_of(std::string_view element_type);

/// Each rounds one block in place.
void round_block(const SharedExponent& format, std::span<float> block);
void round_block(const Microexponents& format, std::span<float> block);
void round_block(const Microscaling& format, std::span<float> block);

/// Hands over blocks of `size` numbers that follow one another along `axis`; the last of a row is filled with zeros,
/// which are dropped again. `values` has `shape`; without dimensions it is one block.
void for_each_block(std::span<const std::int64_t> shape, std::size_t axis, std::size_t size,
                    std::span<const float> values, std::span<float> out,
                    const std::function<void(std::span<float>)>& round);

}  // namespace detent::exec
