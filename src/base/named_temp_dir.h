// Private directories that others can tell from those that detent makes for anything else.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/file.h"

namespace detent {

/// A TempDir whose name is `prefix` and six characters.
TempDir named_temp_dir(const std::filesystem::path& parent, std::string_view prefix);

}  // namespace detent
