#include "store/bfloat16.h"

#include <cstdint>
#include <cstring>

#include "base/vector_clones.h"

namespace detent::store {
namespace {

DETENT_VECTOR_CLONES void narrow_all(const std::byte* from, std::byte* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, from + 4 * i, 4);
    // The carry of the rounding may run into the exponent, as it should.
    const std::uint32_t rounded = (bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16;
    const std::uint32_t quiet = bits >> 16 | 0x40U;
    const auto half = static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet : rounded);
    std::memcpy(to + 2 * i, &half, 2);
  }
}

DETENT_VECTOR_CLONES void widen_all(const std::byte* from, std::byte* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half;
    std::memcpy(&half, from + 2 * i, 2);
    const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
    std::memcpy(to + 4 * i, &bits, 4);
  }
}

}  // namespace

void narrow(std::span<const std::byte> from, std::span<std::byte> to) {
  narrow_all(from.data(), to.data(), from.size() / 4);
}

void widen(std::span<const std::byte> from, std::span<std::byte> to) {
  widen_all(from.data(), to.data(), from.size() / 2);
}

}  // namespace detent::store
