#include "store/aligned_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/bytes.h"
#include "base/error.h"
#include "base/failpoint.h"
#include "base/heap.h"

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

}  // namespace detent::store
