// How finely a tensor's scales are cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace detent::quantization {

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
