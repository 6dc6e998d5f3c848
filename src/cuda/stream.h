// Work queued on a device: streams, events, and graphs that repeat a piece of it without the host's part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "store/buffers.h"

namespace detent::profile {
class DeviceActivity;
}  // namespace detent::profile

namespace detent::cuda {

// Memory of one device, counted against a budget, and pinned memory of the host. Nothing here includes CUDA's headers:
// what is built on it also runs on a host in tests.

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

struct CUstream_st;
struct CUevent_st;

namespace detent::cuda {

/// A queue of the device that was current when it was made. Work of one stream runs in order. All calls throw device.
class Stream {
 public:
  Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream();

  CUstream_st* handle() const noexcept { return handle_; }
  /// Returns when all queued work is done; errors of that work come out here.
  void wait() const;

  /// Queues a copy. The host's bytes must stay until it is done; without pinned memory the host waits, too.
  void upload(void* to, const void* from, std::size_t bytes) const;
  void download(void* to, const void* from, std::size_t bytes) const;
  void copy(void* to, const void* from, std::size_t bytes) const;  // within the device
  void clear(void* at, std::size_t bytes) const;                   // zeros

 private:
  CUstream_st* handle_ = nullptr;
};

template <class T>
void upload(const Stream& stream, const DeviceArray<T>& to, std::span<const T> from, std::size_t at = 0) {
  stream.upload(to.data() + at, from.data(), from.size_bytes());
}
template <class T>
void download(const Stream& stream, std::span<T> to, const DeviceArray<T>& from, std::size_t at = 0) {
  stream.download(to.data(), from.data() + at, to.size_bytes());
}
template <class T>
void clear(const Stream& stream, const DeviceArray<T>& array) {
  stream.clear(array.data(), array.size() * sizeof(T));
}

/// A moment in a stream.
class Event {
 public:
  /// `timed`: milliseconds_since() works.
  explicit Event(bool timed = false);
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event();

  void record(const Stream& stream);
  /// Work queued in `stream` from now on waits for the moment recorded last; nothing if none was.
  void hold(const Stream& stream) const;
  /// The host waits for it.
  void wait() const;
  /// Both were recorded and waited for.
  double milliseconds_since(const Event& earlier) const;

 private:
  CUevent_st* handle_ = nullptr;
};

/// Work that is queued many times. `work` is called once and queues it in the stream that it is given; nothing of it
/// runs before launch().
class Graph {
 public:
  Graph(const Stream& stream, const std::function<void()>& work);
  Graph(Graph&&) noexcept;
  Graph& operator=(Graph&&) noexcept;
  ~Graph();

  void launch(const Stream& stream) const;

 private:
  struct Recorded;
  std::unique_ptr<Recorded> recorded_;
};

}  // namespace detent::cuda
