// What a build for Windows leaves out.
#pragma once

#include <string>

#include "base/error.h"

namespace detent {

inline Error unavailable(const std::string& what) {
  return usage_error(what + " is not available on Windows", "docs/portability.md tells what is");
}

}  // namespace detent
