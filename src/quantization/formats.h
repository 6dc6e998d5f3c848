// Stored types and the numbers that go with them. Numerics follow ONNX Runtime 1.31's quant_utils.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "detent/config.h"
#include "onnx/packed_numbers.h"
#include "onnx/wire.h"

namespace detent::quantization {

/// Inclusive bounds of stored integers.
struct IntRange {
  std::int32_t min = 0;
  std::int32_t max = 0;
};

onnx::DataType data_type(QuantType type) noexcept;
bool is_signed(QuantType type) noexcept;
/// Of a type that is_float(). Zero points of these are 0.
onnx::SmallFloat small_float(QuantType type) noexcept;
bool is_16_bit(QuantType type) noexcept;
/// The type of 16 bits with the same sign.
QuantType with_16_bits(QuantType type) noexcept;
/// The type of the same width with a sign.
QuantType with_sign(QuantType type) noexcept;
bool is_4_bit(QuantType type) noexcept;
/// Types that ONNX gave to Q/DQ with opset 21 only: integers of 4 and of 16 bits.
bool needs_opset_21(QuantType type) noexcept;

/// All values of the type: what stored integers are clipped to. Of floats the extremes.
IntRange full_range(QuantType type) noexcept;
/// The integers that a real range is mapped onto: symmetric signed types leave out the lowest value (int4 keeps
/// it, as in ONNX Runtime), `reduce_range` gives up one bit.
IntRange mapped_range(QuantType type, bool symmetric, bool reduce_range) noexcept;

/// real = scale * (stored - zero_point)
struct ScaleZeroPoint {
  float scale = 1;
  std::int32_t zero_point = 0;
};

/// How real values become stored ones.
struct IntFormat {
  QuantType type = QuantType::int8;
  bool symmetric = false;
  bool reduce_range = false;
  bool power_of_two_scale = false;
  /// Of symmetric types without a sign: where all values are zero, the zero point is the middle of the type as
  /// everywhere else, so that all channels of a weight have the same. ONNX Runtime's quantizer gives these channels 0,
  /// which its fast kernels do not take.
  bool uniform_zero_point = false;
  /// Of power-of-two scales: the nearest (on the scale of exponents), as AMD Quark has it, not the next above.
  bool nearest_power_of_two = false;
};

/// The smallest power of two that is not below a positive scale.
double power_of_two_above(double scale) noexcept;

/// The range is widened to include 0; scale = (max-min)/(qmax-qmin) in double, stored as float; zero point rounded half
/// to even. A scale below the smallest normal float becomes scale 1, zero point 0 or, with uniform_zero_point, the
/// middle.
ScaleZeroPoint compute_params(float min, float max, const IntFormat& format) noexcept;

/// Which values of a tensor share one scale and zero point: all of them, those with one index along an axis, or those
/// of one block of `block` neighbours along an axis (and of the same index along all others), as in ONNX's
/// QuantizeLinear with and without `axis` and `block_size`.
struct Granularity {
  enum class Kind { tensor, axis, blocks };

  Kind kind = Kind::tensor;
  std::size_t axis = 0;    // of `axis` and `blocks`
  std::int64_t block = 0;  // of `blocks`: values in a block, at least 1; the last block of an axis may be shorter

  static constexpr Granularity tensor() noexcept { return {}; }
  static constexpr Granularity along(std::size_t axis) noexcept { return {Kind::axis, axis, 0}; }
  static constexpr Granularity blocks(std::size_t axis, std::int64_t block) noexcept {
    return {Kind::blocks, axis, block};
  }

  constexpr bool is_tensor() const noexcept { return kind == Kind::tensor; }
  friend constexpr bool operator==(const Granularity&, const Granularity&) = default;
};

/// Dimensions of the scales, and of the zero points, of a tensor of these dimensions, as ONNX has them: none for the
/// whole tensor, the axis, or all dimensions with the axis counted in blocks. Slices are numbered in that order.
std::vector<std::int64_t> scale_dims(const Granularity& granularity, const std::vector<std::int64_t>& dims);

/// How many scales that is: one for each slice of the tensor.
std::size_t slice_count(const Granularity& granularity, const std::vector<std::int64_t>& dims);

}  // namespace detent::quantization
