// What the processor can do.
#pragma once

#include <fmt/format.h>

#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace detent {

/// Whether 8-bit products are summed in 32 bits (VNNI on x86). Without it ONNX Runtime's uint8 x int8 kernels add pairs
/// of products in saturating 16 bits, which loses accuracy. True on ARM: without dot products (Cortex-A72 and before)
/// its kernels add two products in 16 bits as well, but these only overflow where two neighbouring weights are -128.
inline bool sums_8_bit_products_exactly() noexcept {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;  // leaf 7: AVX512_VNNI is ecx bit 11; its sub-leaf 1: AVX-VNNI is eax bit 4
  const bool avx512 = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && ((c >> 11) & 1U) != 0;
  const bool avx = __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && ((a >> 4) & 1U) != 0;
  return avx512 || avx;
#else
  return true;
#endif
}

#if defined(__x86_64__)
/// As the compiler's own check, which also asks whether the system saves these registers.
inline bool has_avx() noexcept { return __builtin_cpu_supports("avx") != 0; }
inline bool has_avx512() noexcept { return __builtin_cpu_supports("avx512f") != 0; }
#else
inline bool has_avx() noexcept { return false; }
inline bool has_avx512() noexcept { return false; }
#endif

/// What it can do beside what its name says, since a virtual machine may hide some of it.
inline std::string instruction_sets() {
#if defined(__aarch64__)
  return fmt::format("{:x} {:x}", ::getauxval(AT_HWCAP), ::getauxval(AT_HWCAP2));  // dot products, I8MM, SVE, bfloat16
#else
  return fmt::format("{}{}", sums_8_bit_products_exactly(), has_avx512());
#endif
}

}  // namespace detent
