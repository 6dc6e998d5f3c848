// Fewer columns that say nearly the same: what many positions of few samples show repeats itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "finetune/kernels.h"

namespace detent::finetune {

/// Where the values of a convolution's columns come from. Neighbours share most of them, and products of whole columns
/// are sums of products of pixels.
struct Pixels {
  std::size_t count = 0;  // 0: not known, or not worth it
  std::size_t channels = 0;
  std::vector<float> values;          // count × channels
  std::vector<std::uint32_t> behind;  // columns × kernel elements: which pixel, from 1; 0: outside of the input
};

/// Z = Uᵀ X in place of the columns X (n × fan_in), and Uᵀ Y in place of the targets, where U has a few orthonormal
/// columns of n. Squared differences X w − y only become smaller: by a constant, and by what was lost times |w|² at
/// most.
struct ReducedColumns {
  std::size_t count = 0;
  std::vector<float> inputs;   // count × fan_in
  std::vector<float> targets;  // rows × count, or empty as given
  double lost = 0;             // of the sum of all squared inputs: at most `may_lose`
};

/// U spans the products of all columns with some of them, which are picked one after the other: each time the column
/// that those before it explain least, until what they leave of the squared inputs is at most `may_lose` (pivoted
/// Cholesky of X Xᵀ: Harbrecht, Peters and Schneider 2012, "On the low-rank approximation by the pivoted Cholesky
/// decomposition"). `inputs` is n × fan_in, `targets` rows × n or empty; `pixels` are those of the inputs as they are.
/// The result is the same for any number of threads.
ReducedColumns reduce_columns(std::span<const float> inputs, std::span<const float> targets, std::size_t n,
                              std::size_t fan_in, const Pixels& pixels, double may_lose, const Kernels& kernels,
                              std::size_t threads);

}  // namespace detent::finetune
