// How many bits each weight gets so that the model keeps within a size and its error is small.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace detent::quantization {

/// What weights that are decided together may become.
struct BitOption {
  int bits = 4;            // 0: float
  std::int64_t bytes = 0;  // beyond those of the float model: usually negative
  double error = 0;        // that it adds to the model's
};

/// One option of each group, so that their bytes are at most `budget` and the sum of errors is small; nullopt where
/// even the smallest are too large. Each group has an option at least, and 256 at most.
///
/// This is a knapsack. It is solved by a table of the least error by bytes, which are rounded up to a few thousand
/// units, and along the lower convex hulls of the groups' options, with exact bytes, as its Lagrangian relaxation has
/// it (Shoham and Gersho 1988, doi:10.1109/29.90373). What is left over goes to single changes that still fit, the
/// largest gain first; the better of both counts. Equal gains go by the order of groups. Memory: 16 MiB for the table.
std::optional<std::vector<std::size_t>> choose_bits(std::span<const std::vector<BitOption>> groups,
                                                    std::int64_t budget);

}  // namespace detent::quantization
