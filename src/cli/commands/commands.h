// One function for each subcommand: declares its options and what runs when it is chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/signals.h"

namespace detent::cli {

/// `words` is the command line, for the report.
void add_quantize(CLI::App& app, Signals& signals, const std::vector<std::string>& words);
void add_calibrate(CLI::App& app, Signals& signals, const std::vector<std::string>& words);
void add_plan(CLI::App& app);
void add_inspect(CLI::App& app);
void add_check(CLI::App& app);
void add_compare(CLI::App& app, Signals& signals);
void add_verify(CLI::App& app, Signals& signals);
void add_bench(CLI::App& app, Signals& signals);
void add_search(CLI::App& app, Signals& signals);
/// Prints results of quantize side by side.
void add_report(CLI::App& app);
/// Prints completions for a shell.
void add_completions(CLI::App& app);
/// Hidden: prints the schema of options as JSON, from which scripts/generate_options.py writes documentation.
void add_options(CLI::App& app);

}  // namespace detent::cli
