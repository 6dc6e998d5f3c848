#include "base/failure.h"
#include "base/windows/encoding.h"

namespace detent {

// std::filesystem fails with numbers of Windows in some places, and with errno values in others.
int errno_of(const std::error_code& failed) noexcept {
  return failed.category() == std::system_category() ? windows::errno_of_system(failed.value()) : failed.value();
}

}  // namespace detent
