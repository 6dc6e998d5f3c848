// Files that one writes and another reads.
#pragma once

#include "base/file.h"

namespace detent {

/// To be called when all is written and others are to read it. On Windows it closes the file, since others there may
/// refuse to read what is open for writing, as ONNX Runtime does; elsewhere it does nothing.
void let_others_read(UniqueFd& file) noexcept;

}  // namespace detent
