#include "base/heap.h"

#include <cstdlib>  // for __GLIBC__

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace detent {

void trim_heap() noexcept {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

#ifdef __GLIBC__
LargeBlocksApart::LargeBlocksApart() noexcept { ::mallopt(M_MMAP_THRESHOLD, 64 << 10); }
// Where the library's own moving threshold ends up after large blocks were freed: programs that run models are there.
LargeBlocksApart::~LargeBlocksApart() {
  constexpr int kMost = 32 << 20;
  ::mallopt(M_MMAP_THRESHOLD, kMost);
  ::mallopt(M_TRIM_THRESHOLD, 2 * kMost);
}
#else
LargeBlocksApart::LargeBlocksApart() noexcept = default;
LargeBlocksApart::~LargeBlocksApart() = default;
#endif

void* allocate_aligned(std::size_t alignment, std::size_t size) noexcept { return std::aligned_alloc(alignment, size); }
void free_aligned(void* block) noexcept { std::free(block); }

}  // namespace detent
