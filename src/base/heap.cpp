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

}  // namespace detent
