// Every status of CUDA's libraries is looked at; only the files that call them include this.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <fmt/format.h>

#include "base/error.h"

namespace detent::cuda {

/// `doing` completes "the GPU failed to …".
inline void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // what is not sticky is told once
  throw device_error(
      fmt::format("the GPU failed to {}: {} ({})", doing, cudaGetErrorString(status), cudaGetErrorName(status)));
}

inline void check(cublasStatus_t status, const char* doing) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw device_error(fmt::format("cuBLAS failed to {}: {}", doing, cublasLtGetStatusString(status)));
}

inline void check(cudnnStatus_t status, const char* doing) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw device_error(fmt::format("cuDNN failed to {}: {}", doing, cudnnGetErrorString(status)));
}

}  // namespace detent::cuda
