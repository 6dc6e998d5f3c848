#include "base/min_max.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/vector_clones.h"

namespace detent {

// In lanes, as the compiler may not reorder a chain of comparisons.
DETENT_VECTOR_CLONES
MinMax widened(MinMax bounds, std::span<const float> values) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> lows, highs;
  lows.fill(bounds.min);
  highs.fill(bounds.max);
  const auto widen = [&](std::size_t lane, float value) {
    lows[lane] = value < lows[lane] ? value : lows[lane];
    highs[lane] = value > highs[lane] ? value : highs[lane];
  };
  std::size_t at = 0;
  for (; at + kLanes <= values.size(); at += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) widen(lane, values[at + lane]);
  }
  for (; at < values.size(); ++at) widen(0, values[at]);
  return {*std::min_element(lows.begin(), lows.end()), *std::max_element(highs.begin(), highs.end())};
}

}  // namespace detent
