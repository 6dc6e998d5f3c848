#include "store/payload_hash.h"

#include <xxhash.h>
#ifdef DETENT_HAS_XXH_DISPATCH
#include <xxh_x86dispatch.h>  // the same functions, for the widest vectors that the machine has
#endif

#include <new>

namespace detent::store {

void PayloadHash::Free::operator()(void* state) const noexcept { XXH3_freeState(static_cast<XXH3_state_t*>(state)); }

PayloadHash::PayloadHash() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_.get()));
}

void PayloadHash::add(std::span<const std::byte> bytes) noexcept {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_.get()), bytes.data(), bytes.size());
}

std::uint64_t PayloadHash::result() const noexcept {
  return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state_.get()));
}

}  // namespace detent::store
