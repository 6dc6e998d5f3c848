// Memory straight from the system, in whole pages.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <span>

namespace detent::profile {

/// Pages of memory, zero and not touched yet; empty when there are none to be had.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address == MAP_FAILED) return;
    address_ = static_cast<std::byte*>(address);
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    if (address_ != nullptr) ::munmap(address_, bytes_);
  }
  std::span<std::byte> bytes() const { return {address_, address_ == nullptr ? 0 : bytes_}; }

 private:
  std::size_t bytes_;
  std::byte* address_ = nullptr;
};

}  // namespace detent::profile
