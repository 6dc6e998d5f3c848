// Starts the observer's kernel.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/observe_kernel.h"

namespace detent::cuda {

/// Enqueues the kernel on `stream` of the current device, which has so many multiprocessors.
cudaError_t start_observing(const ObserveArguments& arguments, int multiprocessors, cudaStream_t stream);

}  // namespace detent::cuda
