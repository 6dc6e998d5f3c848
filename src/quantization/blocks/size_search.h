// The smallest size whose loss is small enough, in few measurements.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace detent::quantization {

struct SizeTrial {
  std::uint64_t size = 0;
  double loss = 0;  // 0: none
};

struct SizeSearch {
  std::uint64_t smallest = 0;  // that can be asked for
  std::uint64_t largest = 0;   // at which nothing is lost, and nothing gained
  std::uint64_t first = 0;     // to be tried first
  double most_loss = 0;
  int most_trials = 6;
};

/// The smallest of the tried sizes whose loss is at most `most_loss`; nullopt where there is none. `expected` is cheap,
/// falls with the size, and is taken to be in proportion to `measured`: each trial tells the factor anew. The search
/// ends within 1 % of a size that failed. `trials` gets what was measured, in order.
std::optional<std::uint64_t> smallest_size(const SizeSearch& search,
                                           const std::function<double(std::uint64_t)>& expected,
                                           const std::function<double(std::uint64_t)>& measured,
                                           std::vector<SizeTrial>& trials);

}  // namespace detent::quantization
