// Memory for activations: freed blocks are kept for reuse (best fit, split and joined again), but never more in all
// than the largest amount that was in use at one time. So the peak is that of the live tensors, and a repeated run
// touches few new pages.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

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
  std::byte* take_unused(std::size_t size);
  void keep_unused(std::byte* block, std::size_t size);
  void forget_unused(std::byte* block, std::size_t size);
  void make_room(std::size_t size) noexcept;

  mutable std::mutex mutex_;
  std::unordered_map<std::byte*, std::size_t> live_;
  std::map<std::byte*, std::size_t> unused_;                     // by address, to join neighbours
  std::set<std::pair<std::size_t, std::byte*>> unused_by_size_;  // the same blocks, to find the best fit
  std::size_t live_bytes_ = 0;
  std::size_t unused_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace detent::exec
