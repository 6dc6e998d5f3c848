// Answers to words on the command line that nothing takes.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "detent/error.h"

namespace detent::cli {

/// The usage error for the first word that was left over when `app` parsed the command line: it names the nearest
/// command or option, or the commands that do take the option.
Error unexpected_word(const CLI::App& app);

/// The usage error for an option that other commands take, and this one does not; nullopt: none takes it.
std::optional<Error> option_of_others(std::string_view command, std::string_view name);

/// What CLI11 says of a command line, in plain words.
std::string in_words(std::string text);

/// Whether a word was left over that looks like an option.
bool has_unknown_option(const CLI::App& app);

/// The command line with "help COMMAND" spelled as "COMMAND --help". Throws usage when `app` has no such command.
std::vector<std::string> with_help_as_option(const CLI::App& app, std::vector<std::string> words);

/// Where to read on: "see: detent help COMMAND" with the command of this line, if it has one.
std::string see_help(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace detent::cli
