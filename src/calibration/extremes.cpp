#include "calibration/extremes.h"

#include <bit>
#include <cstddef>

#include "base/vector_clones.h"

namespace detent::calibration {
namespace {

constexpr std::int32_t kInfinityKey = 0x7f800000;

DETENT_VECTOR_CLONES
void scan_keys(const float* values, std::size_t count, std::int32_t* min, std::int32_t* max) {
  std::int32_t lo = *min;
  std::int32_t hi = *max;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t key = order_key(std::bit_cast<std::int32_t>(values[i]));
    lo = key < lo ? key : lo;
    hi = key > hi ? key : hi;
  }
  *min = lo;
  *max = hi;
}

}  // namespace

KeyRange scan(std::span<const float> values) noexcept {
  KeyRange range;
  scan_keys(values.data(), values.size(), &range.min, &range.max);
  return range;
}

bool KeyRange::finite() const noexcept {
  return empty() || (max < kInfinityKey && min > order_key(static_cast<std::int32_t>(0xff800000U)));
}
float KeyRange::lowest() const noexcept { return std::bit_cast<float>(order_key(min)); }
float KeyRange::highest() const noexcept { return std::bit_cast<float>(order_key(max)); }

}  // namespace detent::calibration
