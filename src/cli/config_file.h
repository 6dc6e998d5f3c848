// A file of options: YAML with the names of the command line.
#pragma once

#include <string>
#include <vector>

#include "cli/options.h"

namespace detent::cli {

/// What a file calls the option: its name; `model` for the argument MODEL.
std::string key_of(const config::Option& option);

/// What the file says, in its order: `method: mse` for --method mse, a list for an option that takes several values or
/// may be repeated, true or false for a flag. Names may have '_' for '-'. An entry without a value is left out. Throws
/// usage for a file that cannot be read or has anything else in it.
std::vector<GivenOption> read_config_file(const std::string& path, config::Command command);

}  // namespace detent::cli
