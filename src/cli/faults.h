// Private to cli/: files that become unreadable while they are mapped.
#pragma once

#include <string_view>

namespace detent::cli {

/// Writes without a buffer: to standard error, or to standard output where that takes nothing. For signal handlers.
void say_raw(std::string_view text) noexcept;

/// From here on, touching a page of a file that became shorter, or cannot be read, ends the process with one line that
/// names the file, and nothing is left. On Windows such a process ends by the system's exception, without a line.
void explain_faults();

}  // namespace detent::cli
