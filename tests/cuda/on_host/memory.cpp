// Memory of a device that is the host.
#include "cuda/stream.h"

#include <cstdlib>
#include <cstring>

namespace detent::cuda {

DeviceMemory::DeviceMemory(MemoryBudget& budget, std::size_t bytes, const char* what) {
  if (bytes == 0) return;
  budget.take(counted_bytes(bytes), what);
  bytes_ = counted_bytes(bytes);
  budget_ = &budget;
  // Exactly as long as was asked for, so that a sanitizer sees what goes beyond; and no zeros, which a device does not
  // promise either.
  address_ = std::malloc((bytes + 15) / 16 * 16);
  std::memset(address_, 0xa5, bytes);
}

DeviceMemory::~DeviceMemory() {
  if (address_ == nullptr) return;
  std::free(address_);
  budget_->give_back(bytes_);
}

HostMemory::HostMemory(std::size_t bytes, bool pinned) : memory_(bytes), pinned_(pinned) {}
HostMemory::~HostMemory() = default;

}  // namespace detent::cuda
