// Completions of the command line, for shells.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace detent::cli {

enum class Shell { bash, zsh, fish };

/// What the shell sources: the commands of `app` that are not hidden, their options from the schema, and the words that
/// options take.
std::string completions(const CLI::App& app, Shell shell);

}  // namespace detent::cli
