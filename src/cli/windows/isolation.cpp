#include "cli/isolation.h"

#include "base/unavailable.h"

namespace detent::cli {

void recognise_isolation() {}

int run_isolated(const std::vector<std::string>&) { throw unavailable("--isolate"); }

}  // namespace detent::cli
