// The options of a command: declared from the schema, read from the command line and from files, explained and refused.
#pragma once

#include <CLI/CLI.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/signals.h"
#include "config/option.h"
#include "detent/error.h"
#include "detent/samples.h"

namespace detent::cli {

/// One option as the user gave it.
struct GivenOption {
  const config::Option* option = nullptr;
  std::string name;                // as it is spelled: "--per-tensor"
  std::vector<std::string> texts;  // of a flag: "true" or "false", for `option` itself
  bool from_file = false;
};

/// As it would stand on the command line: "--nodes=a,b", "--set=damping=0.1".
std::string as_word(const GivenOption& given);

/// The entries of an option with this text. Of `off`, the opposite name, the text is the opposite.
GivenOption given_by_text(const config::Option& option, std::string_view name, const std::string& text);

class DeclaredOptions {
 public:
  /// Declares all options that this command takes.
  DeclaredOptions(CLI::App& app, config::Command command);

  /// Sets `options` to what the file of --config and the command line say. The command line takes precedence, and of
  /// an option and its opposite the last one given. What neither says comes from the preset. `options.command` gets
  /// what the file says as further words. Throws WantsIsolation. Gives back all that was said.
  std::vector<GivenOption> read(Options& options, config::CommandLine& line) const;

 private:
  std::vector<GivenOption> given_on_command_line() const;
  /// The same, after what only the file says.
  std::vector<GivenOption> given() const;
  static void refuse_text(const std::vector<GivenOption>& given);
  void check_required(const std::vector<GivenOption>& given) const;
  void declare(const config::Option& option);

  CLI::App& app_;
  config::Command command_;
  std::map<const CLI::Option*, std::pair<const config::Option*, std::string>> declared_;  // with the name
};

/// What a command was called with.
struct Call {
  Options options;
  config::CommandLine line;
  std::vector<GivenOption> given;  // as DeclaredOptions::read() gives it back
};

struct Subcommand {
  config::Command command;
  const char* description;
  const char* footer;
  void (*run)(Call&);  // with the values of its options
};

/// Adds it with the options that it takes. `words` is the command line, for a report.
void add_command(CLI::App& app, const Subcommand& subcommand, Signals& signals, const std::vector<std::string>& words);

/// What a file calls the option: its name; `model` for the argument MODEL.
std::string key_of(const config::Option& option);

/// What the file says, in its order: `method: mse` for --method mse, a list for an option that takes several values or
/// may be repeated, true or false for a flag. Names may have '_' for '-'. An entry without a value is left out. Throws
/// usage for a file that cannot be read or has anything else in it.
std::vector<GivenOption> read_config_file(const std::string& path, config::Command command);

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

/// Writes the help of all commands. Of a command with many options --help shows those with the command in
/// Option::usual, --help-all all of them.
class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
};

/// Has `options.samples` read the pictures that --images asks for, for the one input of the model; nullptr without. The
/// stream must outlive the run. Throws usage where --images and samples are both given, or for a model with several
/// inputs.
std::unique_ptr<SampleStream> take_pictures(const config::CommandLine& line, const std::filesystem::path& model,
                                            Options& options);

}  // namespace detent::cli
