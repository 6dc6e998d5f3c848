// The options of a command, declared from the schema and read back in the order of their precedence.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/isolation.h"
#include "config/option.h"
#include "config/presets.h"
#include "config/value.h"
#include "run/model/automatic_target.h"

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
  template <class Options>
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

template <class Options>
std::vector<GivenOption> DeclaredOptions::read(Options& options, config::CommandLine& line) const {
  auto all = given();
  refuse_text(all);
  check_required(all);
  std::vector<std::string_view> paths;
  for (const auto& entry : all) {
    if constexpr (requires { options.command; }) {
      if (entry.from_file) options.command.push_back(as_word(entry));
    }
    if (entry.option->name == "samples" && entry.texts.front() == "0")
      throw usage_error("--samples 0: no sample would be used", "leave it out to use all of them");
    auto member = entry.option->member(options);
    if (!member) member = entry.option->member(line);
    config::assign(*entry.option, *member, entry.texts, entry.name);
    paths.push_back(entry.option->at.path);
  }
  if (line.isolate && !is_isolated) throw WantsIsolation();
  if constexpr (requires { config::resolve(options, paths); }) {
    run::name_target(options);
    config::resolve(options, paths);
  }
  return all;
}

}  // namespace detent::cli
