// What --help prints: 80 columns, the usual options first.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace detent::cli {

/// Writes the help of all commands. Of a command with many options --help shows those with the command in
/// Option::usual, --help-all all of them.
class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

}  // namespace detent::cli
