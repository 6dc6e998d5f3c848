// Where kernels find the numbers of a weight's block of scales (see solve/layers/problem.h).
#pragma once

#include "cuda/simt.h"

namespace detent::cuda {

/// Arrays of numbers that blocks of scales have are [rows, blocks].
struct ScaleBlocks {
  std::uint32_t blocks = 1;  // of a row
  std::uint32_t size = 0;    // weights of a block

  DETENT_DEVICE std::size_t at(std::size_t row, std::size_t weight) const {
    return blocks == 1 ? row : row * blocks + static_cast<std::uint32_t>(weight) / size;
  }
};

}  // namespace detent::cuda
