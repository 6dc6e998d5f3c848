// Memory that a disk can be read into, and a count of what is in use.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace detent::store {

/// Files are read and written past the page cache in whole blocks, to and from memory that begins at one.
inline constexpr std::size_t kBlock = 4096;

constexpr std::uint64_t whole_blocks(std::uint64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

/// Uninitialised memory that begins at a block. Large ones come straight from the system and return to it at once.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  /// Throws resource when there is no memory.
  explicit AlignedBuffer(std::size_t size);
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  ~AlignedBuffer();

  std::span<std::byte> bytes() const noexcept { return {data_, size_}; }
  std::size_t size() const noexcept { return size_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Bytes in use now and at most; what is added here counts in `total` too.
class Gauge {
 public:
  explicit Gauge(Gauge* total = nullptr) : total_(total) {}

  void add(std::uint64_t bytes) noexcept;
  void subtract(std::uint64_t bytes) noexcept;
  std::uint64_t now() const noexcept { return now_; }
  std::uint64_t peak() const noexcept { return peak_; }

 private:
  Gauge* total_;
  std::atomic<std::uint64_t> now_ = 0;
  std::atomic<std::uint64_t> peak_ = 0;
};

/// A share of a gauge that is given back at the end.
class Charge {
 public:
  Charge() = default;
  Charge(Gauge& gauge, std::uint64_t bytes) noexcept : gauge_(&gauge), bytes_(bytes) { gauge.add(bytes); }
  Charge(Charge&& other) noexcept : gauge_(std::exchange(other.gauge_, nullptr)), bytes_(other.bytes_) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(gauge_, other.gauge_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Charge() { reset(); }

  void reset() noexcept {
    if (gauge_ != nullptr) std::exchange(gauge_, nullptr)->subtract(bytes_);
  }

 private:
  Gauge* gauge_ = nullptr;
  std::uint64_t bytes_ = 0;
};

/// Buffers that records are read into. First touches of fresh memory can cost more than reading it from disk, so some
/// of those that were given back wait for the next record.
class BufferPool {
 public:
  /// Keeps up to `limit` bytes less what `others` holds, and counts what it keeps in `memory`. Buffers may outlive the
  /// pool, gauges must not.
  BufferPool(std::uint64_t limit, const Gauge& others, Gauge& memory);
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  /// At least `size` bytes, which return to the pool when the last owner lets go. Throws resource.
  std::shared_ptr<const AlignedBuffer> take(std::size_t size);

  /// Gives kept buffers back to the system until `bytes` more fit beside the others.
  void make_room(std::uint64_t bytes);

 private:
  struct Kept;
  const std::shared_ptr<Kept> kept_;
};

}  // namespace detent::store
