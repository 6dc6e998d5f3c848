#include "base/fingerprint.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>

namespace detent {

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
