// Loops over many values that become 16-bit floats, compiled for several vector widths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "detent/config.h"

namespace detent::quantization {

/// Rounds to float16 or bfloat16; `out` has as many values.
void to_16_bits(std::span<const float> values, FloatType type, std::uint16_t* out);

/// Rounds in place; returns how many finite values became infinite.
std::size_t round_to_16_bits(std::span<float> values, FloatType type);

/// What rounding does to values, of which those that are not finite are left out.
struct Rounding16 {
  float smallest = 0;  // magnitude that is not 0; 0: all are
  float largest = 0;
  double squares = 0, errors = 0;  // sums, of the values and of the differences
};

/// Adds up values part by part; the sums depend on the parts.
class Rounding16Sums {
 public:
  explicit Rounding16Sums(FloatType type);
  void add(std::span<const float> values);
  Rounding16 sums() const;

  static constexpr std::size_t kLanes = 8;
  /// Of every eighth value each, so that they are computed side by side.
  struct Lanes {
    float smallest[kLanes], largest[kLanes];
    double squares[kLanes], errors[kLanes];
  };

 private:
  FloatType type_;
  Lanes lanes_ = {};
};

}  // namespace detent::quantization
