// The heap as the operating system sees it.
#pragma once

namespace detent {

/// Gives back the pages of the heap that nothing uses, where the C library can.
void trim_heap() noexcept;

}  // namespace detent
