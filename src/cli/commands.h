// One function for each subcommand: declares its options and what runs when it is chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <stop_token>
#include <string>
#include <vector>

namespace detent::cli {

/// A check for counts: CLI11 reads "-3" into an unsigned option as a very large number.
inline std::string not_negative(const std::string& text) {
  return text.starts_with('-') ? "must not be negative" : std::string();
}

/// `words` is the command line, for the report.
void add_quantize(CLI::App& app, const std::stop_token& stop, const std::vector<std::string>& words);
void add_calibrate(CLI::App& app, const std::stop_token& stop, const std::vector<std::string>& words);
void add_plan(CLI::App& app);
void add_inspect(CLI::App& app);
void add_compare(CLI::App& app, const std::stop_token& stop);

}  // namespace detent::cli
