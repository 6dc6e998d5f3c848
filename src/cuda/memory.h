// Memory of one device, counted against a budget, and pinned memory of the host. Nothing here includes CUDA's headers:
// what is built on it also runs on a host in tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "store/aligned_buffer.h"

namespace detent::profile {
class DeviceActivity;
}

namespace detent::cuda {

/// What is allocated on one device. One thread at a time.
class MemoryBudget {
 public:
  MemoryBudget(int device, std::uint64_t limit) noexcept : device_(device), limit_(limit) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  std::uint64_t limit() const noexcept { return limit_; }
  std::uint64_t used() const noexcept { return used_; }
  std::uint64_t peak() const noexcept { return peak_; }
  /// Tells it of all that is taken and given back; null: nothing.
  void log_to(profile::DeviceActivity* log) noexcept { log_ = log; }

  /// Throws resource if what is there and `bytes` are more than the limit. `what` is named in the message.
  void require(std::uint64_t bytes, const std::string& what) const;
  void take(std::uint64_t bytes, const std::string& what);
  void give_back(std::uint64_t bytes) noexcept;

 private:
  int device_;
  std::uint64_t limit_;
  std::uint64_t used_ = 0;
  std::uint64_t peak_ = 0;
  profile::DeviceActivity* log_ = nullptr;
};

/// Allocations begin at multiples of this and count as multiples of it.
inline constexpr std::size_t kMemoryUnit = 512;
constexpr std::uint64_t counted_bytes(std::uint64_t bytes) noexcept {
  return (bytes + kMemoryUnit - 1) / kMemoryUnit * kMemoryUnit;
}

/// Memory of the device that is current when it is made. Move-only; throws resource when there is none left.
class DeviceMemory {
 public:
  DeviceMemory() noexcept = default;
  DeviceMemory(MemoryBudget& budget, std::size_t bytes, const char* what);
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceMemory();

  void* address() const noexcept { return address_; }

 private:
  MemoryBudget* budget_ = nullptr;
  void* address_ = nullptr;
  std::size_t bytes_ = 0;  // counted
};

/// An array on a device. Its elements can be looked at by kernels only.
template <class T>
class DeviceArray {
 public:
  DeviceArray() noexcept = default;
  DeviceArray(MemoryBudget& budget, std::size_t count, const char* what)
      : memory_(budget, count * sizeof(T), what), count_(count) {}

  T* data() const noexcept { return static_cast<T*>(memory_.address()); }
  std::size_t size() const noexcept { return count_; }

 private:
  DeviceMemory memory_;
  std::size_t count_ = 0;
};

/// Memory of the host that a device copies from and to: while both work on where it is `pinned`, else while the host
/// waits. It begins at a block, so that a disk can be read into it, and consists of huge pages where the system has
/// some: a read past the page cache is otherwise cut into as many pieces as there are pages. Throws resource.
class HostMemory {
 public:
  HostMemory() noexcept = default;
  explicit HostMemory(std::size_t bytes, bool pinned = true);
  HostMemory(HostMemory&& other) noexcept { *this = std::move(other); }
  HostMemory& operator=(HostMemory&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(pinned_, other.pinned_);
    return *this;
  }
  ~HostMemory();

  template <class T>
  std::span<T> as() const noexcept {
    return {reinterpret_cast<T*>(memory_.bytes().data()), memory_.size() / sizeof(T)};
  }
  std::size_t size() const noexcept { return memory_.size(); }

 private:
  store::AlignedBuffer memory_;
  bool pinned_ = false;
};

}  // namespace detent::cuda
