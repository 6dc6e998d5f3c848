// The inputs of a convolution at many positions, kept as pixels. Neighbouring positions share most of them, so pixels
// take a small part of the memory of X.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "solve/algebra/kernels.h"

namespace detent::solve {

struct Pixels {
  std::size_t count = 0;  // 0: inputs are kept as they are
  std::size_t channels = 0;
  std::size_t elements = 0;           // of the kernel
  std::vector<float> values;          // count × channels
  std::vector<std::uint32_t> behind;  // elements × positions: which pixel, from 1; 0: outside of the input

  std::size_t positions() const noexcept { return elements == 0 ? 0 : behind.size() / elements; }
  /// The inputs that a kernel element reads, [positions, channels].
  std::vector<float> seen_by(std::size_t element) const;
};

/// X, [positions, channels · elements].
std::vector<float> im2col(const Pixels& pixels);
/// For each column of X, the sum of its squares.
std::vector<double> input_powers(const Pixels& pixels);
/// X Xᵀ: sums of products of pixels.
std::vector<float> products(const Pixels& pixels, const Kernels& kernels, std::size_t threads);
/// Uᵀ X for U of [positions, count].
std::vector<float> combine(const Pixels& pixels, const std::vector<float>& basis, std::size_t count,
                           const Kernels& kernels, std::size_t threads);

}  // namespace detent::solve
