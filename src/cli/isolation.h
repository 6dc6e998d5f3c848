// The command in a process of its own, which this one outlives: whatever becomes of it, one line tells, and nothing is
// left.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace detent::cli {

// The command in a process of its own, which this one outlives: whatever becomes of it, one line tells, and nothing of
// it stays.

/// The command line wants another process (--isolate), and this one is not it.
struct WantsIsolation {};

/// Whether this process was started for --isolate. Set once, by the function below.
inline bool is_isolated = false;

/// To be called before anything is done: finds out whether this process was started for --isolate. If so, it tells the
/// other one of all that it would leave, and ends when that one does.
void recognise_isolation();

/// Runs the command line in a process of its own, hands signals on to it, and returns its exit code. Where it ended by
/// a signal, what it left is removed, and a line tells. Needs a process with one thread, where the signals that end
/// programs are blocked (Signals::stop_taking_signals()).
int run_isolated(const std::vector<std::string>& words);

// Private to cli/: files that become unreadable while they are mapped.

/// Writes without a buffer: to standard error, or to standard output where that takes nothing. For signal handlers.
void say_raw(std::string_view text) noexcept;

/// From here on, touching a page of a file that became shorter, or cannot be read, ends the process with one line that
/// names the file, and nothing is left. On Windows such a process ends by the system's exception, without a line.
void explain_faults();

// How deep this process may call: the limit of the shell that starts it (ulimit -s) is not relied on.

/// Gives the first thread and all that are started later the stack that detent is written for, as far as the limits
/// allow it; ends the process with a line and the exit code of a resource where that is far too little. To be called
/// before anything that needs one.
void settle_stack() noexcept;

}  // namespace detent::cli
