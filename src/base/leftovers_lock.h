// What is made and is to be removed when the process ends is made as it becomes one of the leftovers.
#pragma once

#include <mutex>

namespace detent {

/// While the lock lives, remove_leftovers() waits: nothing is made that it does not know of. Who asks for it once
/// remove_leftovers() has begun waits for ever.
std::unique_lock<std::recursive_mutex> hold_leftovers();

}  // namespace detent
