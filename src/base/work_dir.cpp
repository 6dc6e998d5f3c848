#include <cstdlib>

#include "base/file.h"

namespace detent {

std::filesystem::path default_work_dir() {
  const char* from_environment = std::getenv("TMPDIR");
  return from_environment != nullptr && *from_environment != '\0' ? from_environment : "/tmp";
}

}  // namespace detent
