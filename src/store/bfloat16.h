// Float32 values in half the bytes: bfloat16, which keeps the exponent and 8 bits of precision.
#pragma once

#include <cstddef>
#include <span>

namespace detent::store {

/// Rounds to nearest, ties to even. Infinities stay, NaN stays NaN, finite values beyond the largest bfloat16 become
/// infinite. `to` holds two bytes for each four of `from`; neither needs an alignment.
void narrow(std::span<const std::byte> from, std::span<std::byte> to);

/// Back to float32, exactly.
void widen(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace detent::store
