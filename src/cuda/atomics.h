// Additions and comparisons that several threads of a device do at a time. On a host one thread runs after another, so
// they need not be atomic there.
#pragma once

#include "cuda/simt.h"

namespace detent::cuda {

DETENT_DEVICE void atomic_add(unsigned* to, unsigned value) {
#ifdef __CUDACC__
  atomicAdd(to, value);
#else
  *to += value;
#endif
}

DETENT_DEVICE void atomic_add(unsigned long long* to, unsigned long long value) {
#ifdef __CUDACC__
  atomicAdd(to, value);
#else
  *to += value;
#endif
}

DETENT_DEVICE void atomic_max(unsigned* to, unsigned value) {
#ifdef __CUDACC__
  atomicMax(to, value);
#else
  *to = value > *to ? value : *to;
#endif
}

/// What stood there; replaced by `value` where that was `expected`.
DETENT_DEVICE unsigned atomic_swap_if(unsigned* at, unsigned expected, unsigned value) {
#ifdef __CUDACC__
  return atomicCAS(at, expected, value);
#else
  const unsigned before = *at;
  if (before == expected) *at = value;
  return before;
#endif
}

/// Another thread of the block may be writing it.
DETENT_DEVICE unsigned read_shared(const unsigned* at) { return *static_cast<const volatile unsigned*>(at); }

}  // namespace detent::cuda
