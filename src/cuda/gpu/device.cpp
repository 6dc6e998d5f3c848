#include "cuda/device.h"

#include "cuda/gpu/check.h"

namespace detent::cuda {

DeviceFacts facts_of(int number) {
  constexpr int kOldest = 8;  // compute capability: bfloat16 and TF32 products begin there
  make_current(number);
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, number), "tell its properties");
  if (properties.major < kOldest) {
    throw device_error(fmt::format("cuda:{} ({}) has compute capability {}.{}, and {}.0 is needed", number,
                                   properties.name, properties.major, properties.minor, kOldest),
                       "choose another --device");
  }
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "tell its memory");
  DeviceFacts facts;
  facts.name = properties.name;
  facts.multiprocessors = properties.multiProcessorCount;
  facts.free_bytes = free;
  return facts;
}

void make_current(int number) { check(cudaSetDevice(number), "be used"); }

}  // namespace detent::cuda
