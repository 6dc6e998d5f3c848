// The upper half of a float.
#pragma once

#include "cuda/simt.h"

namespace detent::cuda {

struct Bfloat16 {
  std::uint16_t bits;
};

/// Half to even; NaN stays NaN.
DETENT_DEVICE Bfloat16 to_bfloat16(float value) {
  union {
    float value;
    std::uint32_t bits;
  } word{value};
  if ((word.bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>((word.bits >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((word.bits + 0x7fffU + ((word.bits >> 16) & 1U)) >> 16)};
}

/// to[i] = from[i]
struct ToBfloat16 {
  const float* from;
  Bfloat16* to;
  std::size_t count;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, count, [&](std::size_t i) { to[i] = to_bfloat16(from[i]); });
  }
};

}  // namespace detent::cuda
