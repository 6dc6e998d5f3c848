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

void* allocate_aligned(std::size_t alignment, std::size_t size) noexcept { return std::aligned_alloc(alignment, size); }
void free_aligned(void* block) noexcept { std::free(block); }

}  // namespace detent
