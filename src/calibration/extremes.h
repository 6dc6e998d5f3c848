// Smallest and largest value of a run of floats, with NaN and infinities kept visible.
#pragma once

#include <cstdint>
#include <span>

namespace detent::calibration {

/// Floats map to integers in the same order: -NaN < -inf < … < -0 < +0 < … < +inf < +NaN. Integer comparison vectorizes
/// without fast-math, and a NaN cannot hide.
constexpr std::int32_t order_key(std::int32_t bits) noexcept { return bits ^ ((bits >> 31) & 0x7fffffff); }

struct KeyRange {
  std::int32_t min = 0x7fffffff;
  std::int32_t max = -0x7fffffff - 1;

  bool empty() const noexcept { return min > max; }
  void merge(const KeyRange& other) noexcept {
    min = other.min < min ? other.min : min;
    max = other.max > max ? other.max : max;
  }
  /// Whether all values seen are finite.
  bool finite() const noexcept;
  float lowest() const noexcept;
  float highest() const noexcept;
};

KeyRange scan(std::span<const float> values) noexcept;

}  // namespace detent::calibration
