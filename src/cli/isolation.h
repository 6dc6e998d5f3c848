// The command in a process of its own, which this one outlives: whatever becomes of it, one line tells, and nothing of
// it stays.
#pragma once

#include <string>
#include <vector>

namespace detent::cli {

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

}  // namespace detent::cli
