#include "cuda/rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/parallel.h"

namespace detent::cuda {

ScaleBlocks scale_blocks_of(const solve::QuantizedWeights& weights) {
  return {static_cast<std::uint32_t>(weights.blocks()), static_cast<std::uint32_t>(weights.block_size())};
}

void check_size(std::size_t rows, std::size_t fan_in) {
  if (static_cast<double>(rows) * static_cast<double>(fan_in) < 0x1p32) return;
  throw resource_error(fmt::format("a layer of {} x {} weights is beyond what the GPU's kernels count", rows, fan_in),
                       "give more devices, which share its rows, or --device cpu");
}

void for_each_device(std::size_t count, const std::function<void(std::size_t)>& fn) { parallel_for(count, count, fn); }

}  // namespace detent::cuda
