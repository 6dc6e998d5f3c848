// What a convolution's columns are made of. Neighbours share most of it: pixels are a small part of the columns' size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "finetune/kernels.h"

namespace detent::finetune {

struct Pixels {
  std::size_t count = 0;  // 0: columns are kept as they are
  std::size_t channels = 0;
  std::size_t elements = 0;           // of the kernel
  std::vector<float> values;          // count × channels
  std::vector<std::uint32_t> behind;  // elements × columns: which pixel, from 1; 0: outside of the input

  std::size_t columns() const noexcept { return elements == 0 ? 0 : behind.size() / elements; }
  /// What an element of the kernel sees, columns × channels.
  std::vector<float> seen_by(std::size_t element) const;
};

/// X, columns × (channels · elements).
std::vector<float> spell_out(const Pixels& pixels);
/// Sums of squares of each of its columns' entries.
std::vector<double> powers(const Pixels& pixels);
/// X Xᵀ: sums of products of pixels.
std::vector<float> products(const Pixels& pixels, const Kernels& kernels, std::size_t threads);
/// Uᵀ X for U of columns × count.
std::vector<float> combine(const Pixels& pixels, const std::vector<float>& basis, std::size_t count,
                           const Kernels& kernels, std::size_t threads);

}  // namespace detent::finetune
