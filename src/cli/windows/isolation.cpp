#include "cli/isolation.h"
#include "base/error.h"

namespace detent::cli {

void recognise_isolation() {}

int run_isolated(const std::vector<std::string>&) { throw unavailable("--isolate"); }

void explain_faults() {}

// The linker settles the size of stacks (CMakeLists.txt).

void settle_stack() noexcept {}

}  // namespace detent::cli
