#include <fmt/format.h>

#include "base/error.h"
#include "base/paths.h"

namespace detent {
namespace paths {

bool names_open_files() {
  if (!is_folder("/proc/self/fd"))
    throw device_error("there is no /proc/self/fd, by which the runtime reads files", "mount /proc");
  return true;
}

std::filesystem::path of_open_file(int descriptor, std::error_code& failed) {
  names_open_files();
  return std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), failed);
}

}  // namespace paths
}  // namespace detent
