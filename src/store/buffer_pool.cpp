#include "store/buffer_pool.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace detent::store {

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
