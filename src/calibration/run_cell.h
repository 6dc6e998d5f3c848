// What one run gives of one value, as a device counts it. Included by kernels, and so without anything else.
#pragma once

#include <cstdint>

namespace detent::calibration {

/// All zero: nothing yet. Extremes are those of the finite values, as order_key() with the sign bit flipped, so that
/// unsigned maxima of them are right; the smallest is kept inverted for the same reason. No finite value gives 0 for
/// either.
struct RunCell {
  std::uint32_t inverted_min = 0;
  std::uint32_t max = 0;
  unsigned long long nan_count = 0;
  unsigned long long inf_count = 0;
};
static_assert(sizeof(RunCell) == 24);

}  // namespace detent::calibration
