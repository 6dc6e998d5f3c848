// Buffers that records are read into. First touches of fresh memory can cost more than reading it from disk, so some
// of those that were given back wait for the next record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "store/aligned_buffer.h"

namespace detent::store {

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
