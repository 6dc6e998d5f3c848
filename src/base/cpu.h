// What the processor can do.
#pragma once

namespace detent {

/// Whether 8-bit products are summed in 32 bits (VNNI on x86). Without it ONNX Runtime's uint8 x int8 kernels add pairs of
/// products in saturating 16 bits, which loses accuracy. True where the question does not arise.
inline bool sums_8_bit_products_exactly() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vnni") != 0 || __builtin_cpu_supports("avxvnni") != 0;
#else
  return true;
#endif
}

}  // namespace detent
