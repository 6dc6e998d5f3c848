// Devices for the tests: on the host there are eight, each of which is the host.
#pragma once

#include "cuda/rows.h"
#include "finetune/support.h"

namespace detent::cuda {

using finetune::all_kinds;
using finetune::Case;
using finetune::kernels;
using finetune::Layer;
using finetune::make_layer;

inline Devices devices(std::size_t count = 1, std::uint64_t budget = std::uint64_t{1} << 30) {
  Devices made;
  for (std::size_t i = 0; i < count; ++i) made.push_back(std::make_unique<Device>(static_cast<int>(i), budget));
  return made;
}

}  // namespace detent::cuda
