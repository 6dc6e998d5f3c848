#include "cli/usage_errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/nearest_word.h"
#include "config/option.h"

namespace detent::cli {
namespace {

constexpr unsigned kAllCommands = ~0U;

bool is_command(const CLI::App& app, const std::string& word) {
  return !app.get_subcommands([&](const CLI::App* command) { return command->get_name() == word; }).empty();
}

Error no_command(const CLI::App& app, const std::string& word) {
  std::vector<std::string_view> names{"help"};
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) names.push_back(command->get_name());
  }
  const auto meant = did_you_mean(word, names);
  return usage_error(fmt::format("there is no command '{}'", word), meant.empty() ? "see: detent --help" : meant);
}

// For a word that a command takes no notice of.
Error no_such_word(const std::string& command, const std::string& word) {
  const std::string hint = fmt::format("see: detent help {}", command);
  if (!word.starts_with('-')) return usage_error(fmt::format("unexpected word '{}'", word), hint);
  const std::string typed = word.substr(0, word.find('='));
  const std::string name = typed.substr(std::min(typed.find_first_not_of('-'), typed.size()));
  if (config::find(name, config::command_of(command)) != nullptr)
    return usage_error(fmt::format("there is no option '{}' before the command", typed),
                       fmt::format("options follow the command: detent {} {}", command, typed));
  if (auto of_others = option_of_others(command, name)) return *of_others;
  const auto meant = did_you_mean(name, config::names(config::command_of(command)), "--");
  return usage_error(fmt::format("detent {} has no option '{}'", command, typed), meant.empty() ? hint : meant);
}

}  // namespace

Error unexpected_word(const CLI::App& app) {
  const auto words = app.remaining(true);
  const auto chosen = app.get_subcommands();
  if (words.empty()) return usage_error("the command line is not understood", "see: detent --help");
  if (!chosen.empty()) return no_such_word(chosen.front()->get_name(), words.front());
  if (!words.front().starts_with('-')) return no_command(app, words.front());
  return usage_error(fmt::format("there is no option '{}' before the command", words.front()),
                     "options follow the command, as in: detent quantize MODEL -o FILE");
}

std::optional<Error> option_of_others(std::string_view command, std::string_view name) {
  const auto* row = config::find(name, kAllCommands);
  if (row == nullptr) return std::nullopt;
  std::vector<std::string_view> takers;
  for (const auto& [bit, taker] : config::commands()) {
    if ((row->commands & bit) != 0) takers.push_back(taker);
  }
  return usage_error(fmt::format("detent {} does not take {}", command, row->spelled(name)),
                     fmt::format("it is an option of {}", fmt::join(takers, ", ")));
}

std::string in_words(std::string text) {
  const auto at = text.find(": 1 required TEXT missing");
  return at == std::string::npos ? text : text.substr(0, at) + " needs a value";
}

bool has_unknown_option(const CLI::App& app) {
  const auto words = app.remaining(true);
  return !words.empty() && words.front().starts_with("--");
}

std::string see_help(const CLI::App& app, const std::vector<std::string>& words) {
  if (words.size() > 1 && is_command(app, words[1])) return "see: detent help " + words[1];
  return "see: detent --help";
}

std::vector<std::string> with_help_as_option(const CLI::App& app, std::vector<std::string> words) {
  if (words.size() < 2 || words[1] != "help") return words;
  if (words.size() > 2 && !words[2].starts_with('-') && !is_command(app, words[2])) throw no_command(app, words[2]);
  words.erase(words.begin() + 1);
  words.emplace_back("--help");
  return words;
}

}  // namespace detent::cli
