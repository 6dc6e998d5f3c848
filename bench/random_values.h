// Made-up values for benchmarks.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

namespace detent::bench {

/// From the standard normal distribution.
inline std::vector<float> normal(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> value;
  std::vector<float> values(count);
  for (float& v : values) v = value(random);
  return values;
}

}  // namespace detent::bench
