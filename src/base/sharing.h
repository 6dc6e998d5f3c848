// Files that one writes and another reads.
#pragma once

#include "base/file.h"

namespace detent {

/// To be called when all is written and others are to read it, or its folder is to be removed. On Windows it closes the
/// file: others there may refuse to read what is open for writing, as ONNX Runtime does, and a folder stays as long as
/// a file of it is open. Elsewhere it does nothing.
void release_to_others(UniqueFd& file) noexcept;

}  // namespace detent
