#include "cli/commands.h"
namespace detent::cli { void add_inspect(CLI::App&) {} void add_compare(CLI::App&, std::stop_token) {} }
