#include "exec/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <new>
#include <utility>

#include "base/heap.h"

namespace detent::exec {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPage = 4096;
// Below this malloc does well; above it a freed block should be able to return to the system.
constexpr std::size_t kLarge = std::size_t{64} << 10;
constexpr std::size_t kHuge = std::size_t{2} << 20;

// nullptr: there is no memory.
std::byte* map_block(std::size_t size) {
  void* block = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return nullptr;
  // First touches of 4 KiB pages cost more than the work on them; a refusal does no harm.
  if (size >= kHuge) ::madvise(block, size, MADV_HUGEPAGE);
  return static_cast<std::byte*>(block);
}

}  // namespace

BlockCache::~BlockCache() {
  for (const auto& [begin, block] : blocks_) ::munmap(begin, block.size);
}

// A block in use.
BlockCache::Blocks::iterator BlockCache::add(std::byte* begin, std::size_t size) {
  BySize place{{size, begin}};
  return blocks_.emplace(begin, Block{size, place.extract(place.begin())}).first;
}

// Makes one of two neighbours.
void BlockCache::take_over(Blocks::iterator block, Blocks::iterator next) noexcept {
  block->second.size += next->second.size;
  blocks_.erase(next);
}

void BlockCache::keep_unused(Blocks::iterator block) noexcept {
  unused_bytes_ += block->second.size;
  const auto is_unused = [&](Blocks::iterator neighbour) { return neighbour->second.place.empty(); };
  const auto place_of = [&](Blocks::iterator b) { return unused_.find({b->second.size, b->first}); };
  BySize::node_type place = std::move(block->second.place);
  if (const auto next = std::next(block);
      next != blocks_.end() && is_unused(next) && block->first + block->second.size == next->first) {
    unused_.erase(place_of(next));
    take_over(block, next);
  }
  if (block != blocks_.begin()) {
    const auto before = std::prev(block);
    if (is_unused(before) && before->first + before->second.size == block->first) {
      unused_.erase(place_of(before));
      take_over(before, block);
      block = before;
    }
  }
  place.value() = {block->second.size, block->first};
  unused_.insert(std::move(place));
}

BlockCache::Blocks::iterator BlockCache::take_unused(std::size_t size) {
  const auto found = unused_.lower_bound({size, nullptr});
  if (found == unused_.end()) return blocks_.end();
  const auto block = blocks_.find(found->second);
  const std::size_t rest = block->second.size - size;
  const auto second = rest > 0 ? add(block->first + size, rest) : blocks_.end();
  unused_bytes_ -= block->second.size;
  block->second.place = unused_.extract(found);
  block->second.size = size;
  if (rest > 0) keep_unused(second);
  return block;
}

void BlockCache::give_back(BySize::iterator place) noexcept {
  const auto [size, begin] = *place;
  ::munmap(begin, size);
  unused_bytes_ -= size;
  blocks_.erase(begin);
  unused_.erase(place);
}

// Small pieces go first: they are the least likely to serve again.
void BlockCache::make_room(std::size_t size) noexcept {
  const std::size_t allowed = std::max(peak_bytes_, live_bytes_ + size);
  while (!unused_.empty() && live_bytes_ + unused_bytes_ + size > allowed) give_back(unused_.begin());
}

void BlockCache::give_all_back() noexcept {
  while (!unused_.empty()) give_back(unused_.begin());
}

BlockCache::Blocks::iterator BlockCache::map_new(std::size_t size) {
  make_room(size);
  std::byte* begin = map_block(size);
  if (begin == nullptr && !unused_.empty()) {  // where memory is short, none lies idle
    give_all_back();
    begin = map_block(size);
  }
  if (begin == nullptr) throw std::bad_alloc();
  try {
    return add(begin, size);
  } catch (...) {
    ::munmap(begin, size);
    throw;
  }
}

void* BlockCache::allocate(std::size_t size) {
  if (size < kLarge) {
    void* block =
        allocate_aligned(kAlignment, (std::max<std::size_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment);
    if (block == nullptr) throw std::bad_alloc();
    return block;
  }
  if (size > std::numeric_limits<std::size_t>::max() - kPage) throw std::bad_alloc();
  const std::size_t bytes = (size + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  auto block = take_unused(bytes);
  if (block == blocks_.end()) block = map_new(bytes);
  live_bytes_ += bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  return block->first;
}

void BlockCache::free(void* block) noexcept {
  if (block == nullptr) return;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(static_cast<std::byte*>(block));
    if (found != blocks_.end()) {
      live_bytes_ -= found->second.size;
      keep_unused(found);
      return;
    }
  }
  free_aligned(block);
}

void BlockCache::trim() noexcept {
  const std::lock_guard lock(mutex_);
  give_all_back();
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
