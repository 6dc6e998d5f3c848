// Layers solved on GPUs.
#pragma once

#include <memory>

#include "cuda/rows.h"
#include "finetune/layer_solver.h"

namespace detent::cuda {

/// Opens the devices. `kernels` must outlive it, and so must `activity` (see finetune::cuda_solver). Throws device.
std::unique_ptr<finetune::LayerSolver> make_solver(const DeviceConfig& config, const finetune::Kernels& kernels,
                                                   profile::DeviceActivity* activity);

}  // namespace detent::cuda
