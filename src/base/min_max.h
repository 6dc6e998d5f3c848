// The smallest and the largest of many floats.
#pragma once

#include <span>

namespace detent {

struct MinMax {
  float min = 0;
  float max = 0;
};

/// The bounds, widened by all values; a NaN widens nothing.
MinMax widened(MinMax bounds, std::span<const float> values);

}  // namespace detent
