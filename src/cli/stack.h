// How deep this process may call: the limit of the shell that starts it (ulimit -s) is not relied on.
#pragma once

namespace detent::cli {

/// Gives the first thread and all that are started later the stack that detent is written for, as far as the limits
/// allow it; ends the process with a line and the exit code of a resource where that is far too little. To be called
/// before anything that needs one.
void settle_stack() noexcept;

}  // namespace detent::cli
