// Rows of weights shared out to devices. They are independent problems, so nothing passes between devices.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cuda/device.h"
#include "cuda/scale_blocks.h"
#include "solve/layers/device_memory.h"
#include "solve/layers/problem.h"

namespace detent::cuda {

using Devices = std::vector<std::unique_ptr<Device>>;

using solve::share_rows;

/// Of an array with an entry for each block of scales, those of some rows.
template <class T>
std::span<const T> blocks_of_rows(const std::vector<T>& all, const solve::QuantizedWeights& weights,
                                  solve::RowRange rows) {
  return std::span<const T>(all).subspan(rows.first * weights.blocks(), rows.count() * weights.blocks());
}

ScaleBlocks scale_blocks_of(const solve::QuantizedWeights& weights);

/// Throws resource for a matrix of more elements than kernels count.
void check_size(std::size_t rows, std::size_t fan_in);

/// Calls fn(i) for i in [0, count), each on a thread of its own. An exception comes out, that of the smallest i, once
/// all have ended.
void for_each_device(std::size_t count, const std::function<void(std::size_t)>& fn);

}  // namespace detent::cuda
