// Memory for activations: large blocks are mapped one by one and kept for reuse, but never more in all than the largest
// amount that was in use at one time. So the peak is that of the live tensors, and a repeated run touches no new pages.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <unordered_map>

namespace detent::exec {

class BlockCache {
 public:
  BlockCache() = default;
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;
  ~BlockCache();

  /// 64-byte aligned; throws std::bad_alloc. Thread-safe, as is free().
  void* allocate(std::size_t size);
  void free(void* block) noexcept;

  /// Gives all unused blocks back to the system.
  void trim() noexcept;

  std::size_t in_use() const;
  std::size_t peak_in_use() const;

 private:
  void* take_cached(std::size_t size);
  void make_room(std::size_t size) noexcept;

  mutable std::mutex mutex_;
  std::unordered_map<void*, std::size_t> live_;
  std::multimap<std::size_t, void*> unused_;
  std::size_t live_bytes_ = 0;
  std::size_t unused_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace detent::exec
