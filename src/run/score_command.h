// A user's own measure of a model: a command that prints a number.
#pragma once

#include <filesystem>
#include <string>

namespace detent::run {

/// Runs `command` by the shell with the path of the model behind it, quoted; the last number on its standard output.
/// What it says on standard error passes through. Throws bad_input when it fails or prints no number.
double score_by_command(const std::string& command, const std::filesystem::path& model);

}  // namespace detent::run
