// The linker settles the size of stacks (CMakeLists.txt).
#include "cli/stack.h"

namespace detent::cli {

void settle_stack() noexcept {}

}  // namespace detent::cli
