#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands/commands.h"
#include "cli/output/output.h"
#include "config/schema_json.h"

namespace detent::cli {

void add_options(CLI::App& app) {
  auto* command = app.add_subcommand("options", "Print all options as JSON");
  command->group("");
  command->callback([] { print_json(config::schema_json(), 1); });
}

}  // namespace detent::cli
