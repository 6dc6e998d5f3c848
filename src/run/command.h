// A command of the user's, or detent itself once more, as a child process.
#pragma once

#include <stop_token>
#include <string>

namespace detent::run {

struct CommandResult {
  int status = 0;      // 128 + N: ended by signal N
  std::string output;  // standard output
};

/// Runs a line in a shell. Standard error passes through, standard input is empty. The command and all that it starts
/// form a process group, which a stop request ends: by SIGTERM, and by SIGKILL where that does not help within two
/// seconds; then it throws interrupted.
CommandResult run_command(const std::string& line, const std::stop_token& stop);

/// `text` as one word for the shell.
std::string quoted(const std::string& text);

/// Ends the command that runs at the moment, if there is one, by SIGKILL. Async-signal-safe: for a process that is
/// about to end without unwinding.
void kill_command() noexcept;

}  // namespace detent::run
