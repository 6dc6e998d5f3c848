// A file of options: YAML with the words of the command line.
#pragma once

#include <string>
#include <vector>

namespace detent::cli {

/// The command line with `--config FILE` (or `--config=FILE`) replaced by what the file says, each entry as an option:
/// `method: mse` becomes --method=mse, a list is joined by commas, true gives a flag, and false or an empty value leaves
/// the option out. What the command line itself says counts instead of the file. Throws usage for a file that cannot be
/// read or is no map of such entries.
std::vector<std::string> with_config_file(const std::vector<std::string>& words);

}  // namespace detent::cli
