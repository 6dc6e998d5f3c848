#include "base/failure.h"

namespace detent {

int errno_of(const std::error_code& failed) noexcept { return failed.value(); }

}  // namespace detent
