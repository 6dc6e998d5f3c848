#include "exec/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace detent::exec {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPage = 4096;
// Below this malloc does well; above it a freed block should be able to return to the system.
constexpr std::size_t kLarge = std::size_t{64} << 10;
// A cached block serves a request that uses at least 7/8 of it; more slack would raise the peak.
constexpr bool fits(std::size_t block, std::size_t size) { return block - size <= block / 8; }

}  // namespace

BlockCache::~BlockCache() {
  trim();
  for (const auto& [block, size] : live_) ::munmap(block, size);
}

void* BlockCache::take_cached(std::size_t size) {
  const auto found = unused_.lower_bound(size);
  if (found == unused_.end() || !fits(found->first, size)) return nullptr;
  const auto [bytes, block] = *found;
  unused_.erase(found);
  unused_bytes_ -= bytes;
  live_.emplace(block, bytes);
  live_bytes_ += bytes;
  return block;
}

void BlockCache::make_room(std::size_t size) noexcept {
  const std::size_t allowed = std::max(peak_bytes_, live_bytes_ + size);
  while (!unused_.empty() && live_bytes_ + unused_bytes_ + size > allowed) {
    const auto largest = std::prev(unused_.end());
    ::munmap(largest->second, largest->first);
    unused_bytes_ -= largest->first;
    unused_.erase(largest);
  }
}

void* BlockCache::allocate(std::size_t size) {
  if (size < kLarge) {
    void* block = std::aligned_alloc(kAlignment, (std::max<std::size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment);
    if (block == nullptr) throw std::bad_alloc();
    return block;
  }
  const std::size_t bytes = (size + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  void* block = take_cached(bytes);
  if (block == nullptr) {
    make_room(bytes);
    block = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) throw std::bad_alloc();
    live_.emplace(block, bytes);
    live_bytes_ += bytes;
  }
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return block;
}

void BlockCache::free(void* block) noexcept {
  if (block == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(block);
    if (found != live_.end()) {
      unused_.emplace(found->second, block);
      unused_bytes_ += found->second;
      live_bytes_ -= found->second;
      live_.erase(found);
      return;
    }
  }
  std::free(block);
}

void BlockCache::trim() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [size, block] : unused_) ::munmap(block, size);
  unused_.clear();
  unused_bytes_ = 0;
}

std::size_t BlockCache::in_use() const {
  const std::lock_guard lock(mutex_);
  return live_bytes_;
}

std::size_t BlockCache::peak_in_use() const {
  const std::lock_guard lock(mutex_);
  return peak_bytes_;
}

}  // namespace detent::exec
