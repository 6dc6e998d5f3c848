// Processes are not started on Windows: nothing there ends what a command has started, as process groups do.
#include "run/command.h"

#include "base/error.h"

namespace detent::run {

std::string quoted(const std::string& text) { return '"' + text + '"'; }

CommandResult run_command(const std::string&, const std::stop_token&) { throw unavailable("a command of your own"); }

void kill_command() noexcept {}

}  // namespace detent::run
