// All kernels, for the GPU.
#include <cuda_runtime.h>

#include "cuda/kernel_list.h"
#include "cuda/launch.h"

namespace detent::cuda {

void check_launch(const char* kernel);

namespace {

extern __shared__ __align__(16) unsigned char shared_memory[];

struct GpuBlock {
  __device__ unsigned index() const { return blockIdx.x; }
  __device__ unsigned count() const { return gridDim.x; }
  __device__ unsigned threads() const { return blockDim.x; }
  template <class T>
  __device__ T* shared() const {
    return reinterpret_cast<T*>(shared_memory);
  }
  template <class Fn>
  __device__ void each(const Fn& fn) const {
    fn(threadIdx.x);
    __syncthreads();
  }
};

template <class Kernel>
__global__ void __launch_bounds__(kThreads) run(const Kernel kernel) {
  GpuBlock block;
  kernel(block);
}

}  // namespace

template <class Kernel>
void launch(const Stream& stream, const Kernel& kernel, unsigned blocks, std::size_t shared_bytes) {
  run<<<blocks, kThreads, shared_bytes, stream.handle()>>>(kernel);
  check_launch(__PRETTY_FUNCTION__);
}

#define DETENT_KERNEL(name) template void launch(const Stream&, const name&, unsigned, std::size_t);
DETENT_KERNELS
#undef DETENT_KERNEL

}  // namespace detent::cuda
