#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "cli/commands/commands.h"
#include "cli/output/output.h"
#include "cli/output/tables.h"
#include "config/enum_names.h"
#include "config/option.h"
#include "config/validate.h"
#include "run/files/outputs.h"
#include "run/records/run_report.h"

namespace detent::cli {
namespace {

nlohmann::json read_result(const std::string& path) {
  auto result = parse_json(read_small_file(path, "result"));
  if (!result || !result->is_object() || !result->contains("model_bytes_after") ||
      !result->at("model_bytes_after").is_number())
    throw bad_input(fmt::format("'{}' is not a result of quantize", path),
                    "make one by: detent quantize … --json > FILE");
  return std::move(*result);
}

}  // namespace

void add_report(CLI::App& app) {
  auto* command =
      app.add_subcommand("report", "Show results of quantize side by side, as a table in Markdown or a page");
  struct Asked {
    std::vector<std::string> files;
    std::optional<std::string> page;
  };
  const auto asked = std::make_shared<Asked>();
  command->add_option("RESULTS", asked->files, "what quantize --json printed, in files")
      ->required()
      ->option_text(" ")
      ->group("Files");
  command
      ->add_option("-o,--output", asked->page,
                   "write an HTML page instead, with a picture of size, latency and accuracy")
      ->option_text("FILE")
      ->group("Files");
  command->footer("Example:\n  detent report int8.json int4.json -o both.html");
  command->callback([asked] {
    std::vector<nlohmann::json> results;
    if (asked->page) {
      for (const auto& file : asked->files) run::check_apart({*asked->page}, {}, file);
      run::check_report_paths(*asked->page, std::nullopt);
    }
    for (const auto& file : asked->files) results.push_back(read_result(file));
    results = single_results(std::move(results));
    if (!asked->page) return write_out(markdown_table(results));
    AtomicFile page(*asked->page);
    page.write(as_byte_span(comparison_page(results)));
    page.commit();
    print_text("picture: {}\n", *asked->page);
  });
}

// Completions of the command line, for shells.

enum class Shell { bash, zsh, fish };

/// What the shell sources: the commands of `app` that are not hidden, their options from the schema, and the words that
/// options take.
std::string completions(const CLI::App& app, Shell shell);

namespace {

constexpr const char* kOrigin = "# Completions of detent, written by: detent completions";
constexpr const char* kShells = "bash zsh fish";

struct Command {
  std::string name;
  std::string what;
  unsigned bit = 0;  // 0: it takes no options of the schema
};

// A name of an option as a shell needs it.
struct Name {
  std::string name;  // without dashes
  const config::Option* option = nullptr;
  bool takes_value = false;
  std::string words;  // that the value may be, with blanks between them
  bool is_file = false;
};

std::vector<Command> commands_of(const CLI::App& app) {
  std::vector<Command> all;
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty())
      all.push_back({command->get_name(), command->get_description(), config::command_of(command->get_name())});
  }
  all.push_back({"help", "Show the options of a command"});
  return all;
}

std::vector<Name> names_of(unsigned commands) {
  std::vector<Name> all;
  for (const auto& option : config::options()) {
    if (option.positional() || option.detail || (option.commands & commands) == 0) continue;
    const auto member = config::any_member(option);
    const bool takes_value = !config::is_flag(member);
    const bool is_file = option.label.starts_with("FILE") || option.label == "PATH" || option.label == "DIR";
    all.push_back(
        {std::string(option.name), &option, takes_value, fmt::format("{}", fmt::join(words_of(option), " ")), is_file});
    if (!option.off.empty()) all.push_back({std::string(option.off), &option, false, {}, false});
  }
  return all;
}

std::string list_of_commands(const std::vector<Command>& commands) {
  std::vector<std::string> names;
  for (const auto& command : commands) names.push_back(command.name);
  return fmt::format("{}", fmt::join(names, " "));
}

// Up to the first semicolon, without what a shell would read as more than text.
std::string summary(const Name& name) {
  const bool opposite = name.name == name.option->off;
  auto text = std::string(opposite ? name.option->off_help : name.option->help);
  text.resize(std::min(text.find(';'), text.size()));
  std::erase_if(text, [](char c) { return std::string_view("'\"`$\\[]").find(c) != std::string_view::npos; });
  return text;
}

std::string bash(const std::vector<Command>& commands) {
  std::map<std::string, std::string> words;
  std::string cases;
  for (const auto& command : commands) {
    if (command.bit == 0) continue;
    std::string names;
    for (const auto& name : names_of(command.bit)) {
      names += fmt::format("--{} ", name.name);
      if (!name.words.empty()) words["--" + name.name] = name.words;
    }
    cases += fmt::format("    {}) names=\"{}--help --help-all\" ;;\n", command.name, names);
  }
  std::string values;
  for (const auto& [name, list] : words)
    values += fmt::format("    {}) mapfile -t COMPREPLY < <(compgen -W \"{}\" -- \"$word\"); return ;;\n", name, list);
  const auto commands_list = list_of_commands(commands);
  return fmt::format(R"({0} bash
_detent() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" names=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W "{1} --help --version" -- "$word")
    return
  fi
  case "$before" in
    help) mapfile -t COMPREPLY < <(compgen -W "{1}" -- "$word"); return ;;
    completions) mapfile -t COMPREPLY < <(compgen -W "{2}" -- "$word"); return ;;
{3}  esac
  case "${{COMP_WORDS[1]}}" in
{4}  esac
  if [[ "$word" == -* ]]; then mapfile -t COMPREPLY < <(compgen -W "$names" -- "$word"); fi
}}
complete -o default -F _detent detent
)",
                     kOrigin, commands_list, kShells, values, cases);
}

std::string zsh(const std::vector<Command>& commands) {
  std::string cases, listed;
  for (const auto& command : commands) {
    auto what = command.what;
    std::erase_if(what, [](char c) { return c == '\'' || c == '[' || c == ']'; });
    listed += fmt::format(" '{}[{}]'", command.name, what);
    if (command.bit == 0) continue;
    cases += fmt::format("  {})\n    _arguments \\\n", command.name);
    for (const auto& name : names_of(command.bit)) {
      auto text = summary(name);
      std::replace(text.begin(), text.end(), ':', ',');
      std::string value;
      if (name.takes_value) {
        auto label = std::string(name.option->label);
        std::replace(label.begin(), label.end(), ':', '=');
        const auto action = !name.words.empty() ? fmt::format("({})", name.words) : name.is_file ? "_files" : " ";
        value = fmt::format(":{}:{}", label.empty() ? "value" : label, action);
      }
      cases += fmt::format("      '--{}[{}]{}' \\\n", name.name, text, value);
    }
    cases += "      '*:file:_files'\n    ;;\n";
  }
  return fmt::format(R"(#compdef detent
{0} zsh

_detent() {{
  case "$words[2]" in
{1}  help) _values command {2} ;;
  completions) _values shell {3} ;;
  *) _values command{4} ;;
  esac
}}
if [ "$funcstack[1]" = _detent ]; then _detent "$@"; else compdef _detent detent; fi
)",
                     kOrigin, cases, list_of_commands(commands), kShells, listed);
}

std::string fish(const std::vector<Command>& commands) {
  std::string out = fmt::format("{} fish\n", kOrigin);
  for (const auto& command : commands) {
    auto what = command.what;
    std::erase(what, '\'');
    out += fmt::format("complete -c detent -n __fish_use_subcommand -a {} -d '{}'\n", command.name, what);
  }
  const std::string seen = "complete -c detent -n '__fish_seen_subcommand_from ";
  out += fmt::format("{}help' -x -a '{}'\n", seen, list_of_commands(commands));
  out += fmt::format("{}completions' -x -a '{}'\n", seen, kShells);
  for (const auto& name : names_of(~0U)) {
    std::vector<std::string_view> takers;
    for (const auto& [bit, taker] : config::kCommands) {
      if ((name.option->commands & bit) != 0) takers.push_back(taker);
    }
    std::string value;
    if (!name.words.empty()) {
      value = fmt::format(" -x -a '{}'", name.words);
    } else if (name.takes_value) {
      value = name.is_file ? " -r -F" : " -x";
    }
    out += fmt::format("{}{}' -l {}{} -d '{}'\n", seen, fmt::join(takers, " "), name.name, value, summary(name));
  }
  return out;
}

}  // namespace

std::string completions(const CLI::App& app, Shell shell) {
  const auto commands = commands_of(app);
  switch (shell) {
    case Shell::bash: return bash(commands);
    case Shell::zsh: return zsh(commands);
    case Shell::fish: return fish(commands);
  }
  return {};
}

void add_completions(CLI::App& app) {
  auto* command = app.add_subcommand("completions", "Print completions of this command line for a shell");
  const auto shell = std::make_shared<Shell>();
  static constexpr config::EnumName kShells[] = {{"bash", 0}, {"zsh", 1}, {"fish", 2}};
  command
      ->add_option_function<std::string>(
          "SHELL", [shell](const auto& text) { *shell = static_cast<Shell>(config::value_of(kShells, text, "SHELL")); },
          "bash, zsh or fish")
      ->required()
      ->group("Shell");
  command->footer(
      "To have them in each new shell, add to its start file:\n"
      "  bash  eval \"$(detent completions bash)\"\n"
      "  zsh   source <(detent completions zsh)\n"
      "  fish  detent completions fish | source");
  command->callback([&app, shell] { write_out(completions(app, *shell)); });
}

void add_options(CLI::App& app) {
  auto* command = app.add_subcommand("options", "Print all options as JSON");
  command->group("");
  command->callback([] { print_json(config::schema_json(), 1); });
}

}  // namespace detent::cli
