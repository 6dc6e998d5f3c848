#include "base/numbers.h"

#include <xxhash.h>

#include <algorithm>
#include <new>

namespace detent {

// In lanes, as the compiler may not reorder a chain of comparisons.
DETENT_VECTOR_CLONES
MinMax widened(MinMax bounds, std::span<const float> values) {
  constexpr std::size_t kLanes = 16;
  std::array<float, kLanes> lows, highs;
  lows.fill(bounds.min);
  highs.fill(bounds.max);
  const auto widen = [&](std::size_t lane, float value) {
    lows[lane] = value < lows[lane] ? value : lows[lane];
    highs[lane] = value > highs[lane] ? value : highs[lane];
  };
  std::size_t at = 0;
  for (; at + kLanes <= values.size(); at += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) widen(lane, values[at + lane]);
  }
  for (; at < values.size(); ++at) widen(0, values[at]);
  return {*std::min_element(lows.begin(), lows.end()), *std::max_element(highs.begin(), highs.end())};
}

Fingerprint& Fingerprint::operator+=(const Fingerprint& other) noexcept {
  const std::uint64_t sum = low + other.low;
  high += other.high + (sum < low ? 1 : 0);
  low = sum;
  return *this;
}

std::string Fingerprint::text() const { return fmt::format("{:016x}{:016x}", high, low); }

void Hasher::Free::operator()(void* state) const noexcept { XXH3_freeState(static_cast<XXH3_state_t*>(state)); }

Hasher::Hasher() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_.get()));
}

void Hasher::add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_.get()), bytes.data(), bytes.size());
}
void Hasher::add(std::string_view text) { add(std::as_bytes(std::span(text.data(), text.size()))); }
void Hasher::add(std::uint64_t number) { add(std::as_bytes(std::span(&number, 1))); }

Fingerprint Hasher::result() const {
  const auto hash = XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_.get()));
  return {hash.low64, hash.high64};
}

}  // namespace detent
