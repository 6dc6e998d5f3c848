#include "store/buffers.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "base/error.h"
#include "base/process.h"
#include "base/text.h"

namespace detent::store {
namespace {

// Below this malloc does well; above it freed memory should return to the system.
constexpr std::size_t kLarge = std::size_t{64} << 10;
constexpr std::size_t kHuge = std::size_t{2} << 20;

std::byte* allocate(std::size_t size) {
  if (failpoint("spool.allocate") != 0) return nullptr;
  if (size < kLarge) return static_cast<std::byte*>(allocate_aligned(kBlock, size));
  void* block = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (block == MAP_FAILED) return nullptr;
  // First touches of small pages cost more than the copy into them; a refusal does no harm.
  if (size >= kHuge) ::madvise(block, size, MADV_HUGEPAGE);
  return static_cast<std::byte*>(block);
}

}  // namespace

AlignedBuffer::AlignedBuffer(std::size_t size) : size_(whole_blocks(size)) {
  if (size_ == 0) return;
  data_ = allocate(size_);
  if (data_ == nullptr) {
    throw resource_error(fmt::format("no memory for {} of intermediate tensors", format_size(size_)),
                         "free some memory, or lower --memory-budget so that more of them are kept on disk");
  }
}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

AlignedBuffer::~AlignedBuffer() {
  if (data_ == nullptr) return;
  if (size_ < kLarge) {
    free_aligned(data_);
  } else {
    ::munmap(data_, size_);
  }
}

void Gauge::add(std::uint64_t bytes) noexcept {
  const std::uint64_t now = now_ += bytes;
  std::uint64_t peak = peak_;
  while (now > peak && !peak_.compare_exchange_weak(peak, now)) {
  }
  if (total_ != nullptr) total_->add(bytes);
}

void Gauge::subtract(std::uint64_t bytes) noexcept {
  now_ -= bytes;
  if (total_ != nullptr) total_->subtract(bytes);
}

struct BufferPool::Kept {
  std::mutex mutex;
  std::vector<AlignedBuffer> buffers;  // the longest unused first
  std::uint64_t limit = 0;
  const Gauge* others = nullptr;  // null once the pool has gone
  Gauge* memory = nullptr;
  std::uint64_t bytes = 0;

  bool fits(std::uint64_t more) const { return others->now() + bytes + more <= limit; }

  AlignedBuffer remove(std::vector<AlignedBuffer>::iterator which) {
    AlignedBuffer buffer = std::move(*which);
    buffers.erase(which);
    bytes -= buffer.size();
    memory->subtract(buffer.size());
    return buffer;
  }
  void make_room(std::uint64_t more) {
    while (!buffers.empty() && !fits(more)) remove(buffers.begin());
  }
  void keep(AlignedBuffer buffer) {
    const std::lock_guard lock(mutex);
    if (others == nullptr || buffer.size() > limit) return;
    make_room(buffer.size());
    if (!fits(buffer.size())) return;
    bytes += buffer.size();
    memory->add(buffer.size());
    buffers.push_back(std::move(buffer));
  }
};

BufferPool::BufferPool(std::uint64_t limit, const Gauge& others, Gauge& memory) : kept_(std::make_shared<Kept>()) {
  kept_->limit = limit;
  kept_->others = &others;
  kept_->memory = &memory;
}

BufferPool::~BufferPool() {
  const std::lock_guard lock(kept_->mutex);
  kept_->memory->subtract(std::exchange(kept_->bytes, 0));
  kept_->buffers.clear();
  kept_->others = nullptr;
}

std::shared_ptr<const AlignedBuffer> BufferPool::take(std::size_t size) {
  AlignedBuffer buffer;
  {
    const std::lock_guard lock(kept_->mutex);
    // One that is not much too large; the latest used is the likeliest to be in the processor's cache.
    const auto found = std::find_if(kept_->buffers.rbegin(), kept_->buffers.rend(), [&](const AlignedBuffer& kept) {
      return kept.size() >= size && kept.size() - size <= size / 8;
    });
    if (found != kept_->buffers.rend()) buffer = kept_->remove(std::next(found).base());
  }
  if (buffer.size() == 0) buffer = AlignedBuffer(size);
  const auto give_back = [kept = kept_](AlignedBuffer* used) {
    const std::unique_ptr<AlignedBuffer> end(used);
    try {
      kept->keep(std::move(*used));
    } catch (const std::bad_alloc&) {  // then it is not kept
    }
  };
  return {std::make_unique<AlignedBuffer>(std::move(buffer)).release(), give_back};
}

void BufferPool::make_room(std::uint64_t bytes) {
  const std::lock_guard lock(kept_->mutex);
  kept_->make_room(bytes);
}

}  // namespace detent::store
