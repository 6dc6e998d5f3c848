// Layers solved on GPUs.
#pragma once

#include <memory>

#include "cuda/rows.h"
#include "solve/layers/layer_solver.h"

namespace detent::cuda {

/// Opens the devices. `kernels` must outlive it, and so must `activity` (see solve::cuda_solver). Throws device.
std::unique_ptr<solve::LayerSolver> make_solver(const DeviceConfig& config, const solve::Kernels& kernels,
                                                profile::DeviceActivity* activity);

}  // namespace detent::cuda
