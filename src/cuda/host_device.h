// What lets kernels be written once and run in two places: on a GPU, and on a host, thread after thread, in tests.
#pragma once

#if defined(__CUDACC__)
#define DETENT_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DETENT_HOST_DEVICE inline
#endif

namespace detent::cuda {

// On a host one thread runs after another, so these need not be atomic there.

DETENT_HOST_DEVICE void atomic_add(unsigned* to, unsigned value) {
#if defined(__CUDA_ARCH__)
  atomicAdd(to, value);
#else
  *to += value;
#endif
}

DETENT_HOST_DEVICE void atomic_add(unsigned long long* to, unsigned long long value) {
#if defined(__CUDA_ARCH__)
  atomicAdd(to, value);
#else
  *to += value;
#endif
}

DETENT_HOST_DEVICE void atomic_max(unsigned* to, unsigned value) {
#if defined(__CUDA_ARCH__)
  atomicMax(to, value);
#else
  *to = value > *to ? value : *to;
#endif
}

/// What stood there; replaced by `value` where that was `expected`.
DETENT_HOST_DEVICE unsigned atomic_swap_if(unsigned* at, unsigned expected, unsigned value) {
#if defined(__CUDA_ARCH__)
  return atomicCAS(at, expected, value);
#else
  const unsigned before = *at;
  if (before == expected) *at = value;
  return before;
#endif
}

/// Another thread of the block may be writing it.
DETENT_HOST_DEVICE unsigned read_shared(const unsigned* at) { return *static_cast<const volatile unsigned*>(at); }

}  // namespace detent::cuda
