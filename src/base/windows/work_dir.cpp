#include "base/file.h"

namespace detent {

std::filesystem::path default_work_dir() {
  std::error_code failed;
  const auto folder = std::filesystem::temp_directory_path(failed);  // of $TMP, $TEMP, $USERPROFILE
  return failed ? std::filesystem::path(".") : folder;
}

}  // namespace detent
