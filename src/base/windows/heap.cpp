#include "base/heap.h"

#include <malloc.h>

namespace detent {

void trim_heap() noexcept { ::_heapmin(); }

LargeBlocksApart::LargeBlocksApart() noexcept = default;
LargeBlocksApart::~LargeBlocksApart() = default;

void* allocate_aligned(std::size_t alignment, std::size_t size) noexcept { return ::_aligned_malloc(size, alignment); }
void free_aligned(void* block) noexcept { ::_aligned_free(block); }

}  // namespace detent
