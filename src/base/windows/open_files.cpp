#include "base/paths.h"
#include "base/windows/encoding.h"

namespace detent {
namespace paths {

bool names_open_files() { return false; }

std::filesystem::path of_open_file(int descriptor, std::error_code& failed) {
  auto path = windows::path_of(descriptor);
  if (path.empty()) failed.assign(errno, std::generic_category());
  return path;
}

}  // namespace paths
}  // namespace detent
