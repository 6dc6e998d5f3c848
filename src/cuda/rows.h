// Rows of weights shared out to devices. They are independent problems, so nothing passes between devices.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cuda/device.h"
#include "finetune/device_memory.h"

namespace detent::cuda {

using Devices = std::vector<std::unique_ptr<Device>>;

using finetune::share_rows;

/// Throws resource for a matrix of more elements than kernels count.
void check_size(std::size_t rows, std::size_t columns);

/// Calls fn(i) for i in [0, count), each on a thread of its own. An exception comes out, that of the smallest i, once
/// all have ended.
void for_each_device(std::size_t count, const std::function<void(std::size_t)>& fn);

}  // namespace detent::cuda
