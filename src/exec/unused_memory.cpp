#include "exec/unused_memory.h"

#include "exec/runtime_impl.h"

namespace detent::exec {

void give_back_unused(const Runtime& runtime) noexcept { runtime.impl()->cache.trim(); }

}  // namespace detent::exec
