// Memory for activations: freed blocks are kept for reuse (best fit, split and joined again), but never more in all
// than the largest amount that was in use at one time. So the peak is that of the live tensors, and a repeated run
// touches few new pages.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <set>
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
  using BySize = std::set<std::pair<std::size_t, std::byte*>>;
  struct Block {
    std::size_t size;
    BySize::node_type place;  // in unused_; held here while the block is in use, so that freeing it takes no memory
  };
  using Blocks = std::map<std::byte*, Block>;

  Blocks::iterator add(std::byte* begin, std::size_t size);
  Blocks::iterator take_unused(std::size_t size);
  Blocks::iterator map_new(std::size_t size);
  void keep_unused(Blocks::iterator block) noexcept;
  void take_over(Blocks::iterator block, Blocks::iterator next) noexcept;
  void give_back(BySize::iterator place) noexcept;
  void make_room(std::size_t size) noexcept;
  void give_all_back() noexcept;

  mutable std::mutex mutex_;
  Blocks blocks_;  // all, by address, so that neighbours are found
  BySize unused_;  // to find the best fit
  std::size_t live_bytes_ = 0;
  std::size_t unused_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
};

}  // namespace detent::exec
