// What a CPU's vector units can do, and numbers that do not depend on them: random ones, extremes, fingerprints.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

// Function attribute for hot loops: one binary, compiled for several vector widths, the widest that the machine has is
// used. Sanitizers start too late for the resolver, so they get plain code.

#if defined(__x86_64__) && defined(__ELF__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define DETENT_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define DETENT_VECTOR_CLONES
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

// Random numbers by counter: each is a function of the seed and of where it is used, so no order of calls and no number
// of threads can change it.

/// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): 128 random bits for each
/// counter and key.
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key) noexcept {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

/// The four numbers of place (high, low) under a seed.
inline std::array<std::uint32_t, 4> random_at(std::uint64_t seed, std::uint64_t high, std::uint64_t low) noexcept {
  return philox({static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
                 static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)},
                {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
}

/// A number in [0, bound) from 32 random bits; the bias is below bound / 2^32.
inline std::size_t scale_to_bound(std::size_t bound, std::uint32_t bits) noexcept {
  return static_cast<std::size_t>((static_cast<std::uint64_t>(bits) * bound) >> 32);
}

// The smallest and the largest of many floats.

struct MinMax {
  float min = 0;
  float max = 0;
};

/// The bounds, widened by all values; a NaN widens nothing.
MinMax widened(MinMax bounds, std::span<const float> values);

/// 128-bit fingerprints of data (XXH3), to tell whether two things are the same; not a defence against forgery.
struct Fingerprint {
  std::uint64_t low = 0;
  std::uint64_t high = 0;

  bool operator==(const Fingerprint&) const = default;
  /// Sum modulo 2^128: the fingerprint of a bag of things, whatever their order.
  Fingerprint& operator+=(const Fingerprint& other) noexcept;
  /// 32 hexadecimal digits.
  std::string text() const;
};

/// Takes data piece by piece; where one piece ends and the next begins does not matter.
class Hasher {
 public:
  Hasher();
  void add(std::span<const std::byte> bytes);
  void add(std::string_view text);
  void add(std::uint64_t number);
  Fingerprint result() const;

 private:
  struct Free {
    void operator()(void* state) const noexcept;
  };
  std::unique_ptr<void, Free> state_;
};

}  // namespace detent
