#include "cuda/gpu/observe.h"

namespace detent::cuda {
namespace {

__device__ ThreadPlace place() { return {blockIdx.x, gridDim.x, threadIdx.x, blockDim.x}; }

__global__ void __launch_bounds__(kObserveThreads) count_all(ObserveArguments of) {
  __shared__ ObservedExtremes extremes;
  __shared__ ObservedRows rows;
  observe_begin(place(), extremes, &rows);
  __syncthreads();
  observe_scan<true>(of, place(), extremes, &rows);
  __syncthreads();
  observe_end(of, place(), extremes, &rows);
}

__global__ void __launch_bounds__(kObserveThreads) find_extremes(ObserveArguments of) {
  __shared__ ObservedExtremes extremes;
  observe_begin(place(), extremes, nullptr);
  __syncthreads();
  observe_scan<false>(of, place(), extremes, nullptr);
  __syncthreads();
  observe_end(of, place(), extremes, nullptr);
}

}  // namespace

cudaError_t start_observing(const ObserveArguments& arguments, int multiprocessors, cudaStream_t stream) {
  if (arguments.count == 0) return cudaSuccess;
  const unsigned blocks = observe_blocks(arguments.count, multiprocessors);
  if (arguments.table != nullptr) {
    count_all<<<blocks, kObserveThreads, 0, stream>>>(arguments);
  } else {
    find_extremes<<<blocks, kObserveThreads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

}  // namespace detent::cuda
