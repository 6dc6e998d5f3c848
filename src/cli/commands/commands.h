// The subcommands: what help says of each, and what runs when it is chosen.
#pragma once

#include <CLI/CLI.hpp>

#include "cli/options.h"

namespace detent::cli {

extern const Subcommand quantize_command, calibrate_command, plan_command, inspect_command, check_command,
    compare_command, verify_command, bench_command, search_command;
/// In the order of --help.
inline const Subcommand* const kSubcommands[] = {&quantize_command, &calibrate_command, &plan_command,
                                                 &inspect_command,  &check_command,     &compare_command,
                                                 &verify_command,   &bench_command,     &search_command};
/// Prints results of quantize side by side.
void add_report(CLI::App& app);
/// Prints completions for a shell.
void add_completions(CLI::App& app);
/// Hidden: prints the schema of options as JSON, from which scripts/generate_options.py writes documentation.
void add_options(CLI::App& app);

}  // namespace detent::cli
