#include "cli/faults.h"

namespace detent::cli {

void explain_faults() {}

}  // namespace detent::cli
