// One function for each subcommand: declares its options and what runs when it is chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <stop_token>

namespace detent::cli {

void add_quantize(CLI::App& app, std::stop_token stop);
void add_inspect(CLI::App& app);
void add_compare(CLI::App& app, std::stop_token stop);

}  // namespace detent::cli
