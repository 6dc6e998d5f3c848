#include <algorithm>
#include <memory>
#include <string>

#include "cli/commands/commands.h"
#include "cli/completions.h"
#include "cli/output/output.h"
#include "config/enum_names.h"

namespace detent::cli {

void add_completions(CLI::App& app) {
  auto* command = app.add_subcommand("completions", "Print completions of this command line for a shell");
  const auto shell = std::make_shared<Shell>();
  static constexpr config::EnumName kShells[] = {{"bash", 0}, {"zsh", 1}, {"fish", 2}};
  command
      ->add_option_function<std::string>(
          "SHELL", [shell](const auto& text) { *shell = static_cast<Shell>(config::value_of(kShells, text, "SHELL")); },
          "bash, zsh or fish")
      ->required()
      ->group("Shell");
  command->footer(
      "To have them in each new shell, add to its start file:\n"
      "  bash  eval \"$(detent completions bash)\"\n"
      "  zsh   source <(detent completions zsh)\n"
      "  fish  detent completions fish | source");
  command->callback([&app, shell] { write_out(completions(app, *shell)); });
}

}  // namespace detent::cli
