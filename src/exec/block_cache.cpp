#include "exec/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <new>

namespace detent::exec {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPage = 4096;
// Below this malloc does well; above it a freed block should be able to return to the system.
constexpr std::size_t kLarge = std::size_t{64} << 10;
constexpr std::size_t kHuge = std::size_t{2} << 20;

std::byte* map_block(std::size_t size) {
  void* block = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) throw std::bad_alloc();
  // First touches of 4 KiB pages cost more than the work on them; a refusal does no harm.
  if (size >= kHuge) ::madvise(block, size, MADV_HUGEPAGE);
  return static_cast<std::byte*>(block);
}

}  // namespace

BlockCache::~BlockCache() {
  trim();
  for (const auto& [block, size] : live_) ::munmap(block, size);
}

void BlockCache::keep_unused(std::byte* block, std::size_t size) {
  auto next = unused_.lower_bound(block);
  if (next != unused_.end() && block + size == next->first) {
    const auto [address, length] = *next;
    forget_unused(address, length);
    size += length;
  }
  next = unused_.lower_bound(block);
  if (next != unused_.begin()) {
    const auto [address, length] = *std::prev(next);
    if (address + length == block) {
      forget_unused(address, length);
      block = address;
      size += length;
    }
  }
  unused_.emplace(block, size);
  unused_by_size_.emplace(size, block);
  unused_bytes_ += size;
}

void BlockCache::forget_unused(std::byte* block, std::size_t size) {
  unused_.erase(block);
  unused_by_size_.erase({size, block});
  unused_bytes_ -= size;
}

std::byte* BlockCache::take_unused(std::size_t size) {
  const auto found = unused_by_size_.lower_bound({size, nullptr});
  if (found == unused_by_size_.end()) return nullptr;
  const auto [length, block] = *found;
  forget_unused(block, length);
  if (length > size) keep_unused(block + size, length - size);
  return block;
}

// Small pieces go first: they are the least likely to serve again.
void BlockCache::make_room(std::size_t size) noexcept {
  const std::size_t allowed = std::max(peak_bytes_, live_bytes_ + size);
  while (!unused_.empty() && live_bytes_ + unused_bytes_ + size > allowed) {
    const auto [length, block] = *unused_by_size_.begin();
    ::munmap(block, length);
    forget_unused(block, length);
  }
}

void* BlockCache::allocate(std::size_t size) {
  if (size < kLarge) {
    void* block =
        std::aligned_alloc(kAlignment, (std::max<std::size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment);
    if (block == nullptr) throw std::bad_alloc();
    return block;
  }
  if (size > std::numeric_limits<std::size_t>::max() - kPage) throw std::bad_alloc();
  const std::size_t bytes = (size + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  std::byte* block = take_unused(bytes);
  if (block == nullptr) {
    make_room(bytes);
    block = map_block(bytes);
  }
  live_.emplace(block, bytes);
  live_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return block;
}

void BlockCache::free(void* block) noexcept {
  if (block == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(static_cast<std::byte*>(block));
    if (found != live_.end()) {
      live_bytes_ -= found->second;
      keep_unused(found->first, found->second);
      live_.erase(found);
      return;
    }
  }
  std::free(block);
}

void BlockCache::trim() noexcept {
  const std::lock_guard lock(mutex_);
  for (const auto& [block, size] : unused_) ::munmap(block, size);
  unused_.clear();
  unused_by_size_.clear();
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
