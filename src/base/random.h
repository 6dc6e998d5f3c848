// Random numbers by counter: each is a function of the seed and of where it is used, so no order of calls and no number
// of threads can change it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace detent {

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

}  // namespace detent
