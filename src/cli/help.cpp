#include "cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/utf8.h"
#include "config/option.h"

namespace detent::cli {
namespace {

constexpr std::size_t kColumns = 80;
constexpr std::size_t kText = 26;        // column where descriptions begin
constexpr std::size_t kFew = 20;         // options that are shown all at once
constexpr const char* kOwn = "Options";  // CLI11's group of --help

std::size_t width(std::string_view text) {
  std::size_t columns = 0;
  for (; !text.empty(); ++columns) text.remove_prefix(first_code_point(text).length);
  return columns;
}

/// Appends words, the first at column `at`, further lines indented by `indent`. A word that is too long for a line
/// stands in one of its own.
void add_wrapped(std::string& out, std::string_view text, std::size_t at, std::size_t indent) {
  bool first = true;
  while (!text.empty()) {
    const auto end = std::min(text.find(' '), text.size());
    const auto word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!first && at + 1 + width(word) > kColumns) {
      out += "\n" + std::string(indent, ' ');
      at = indent;
    } else if (!first) {
      out += ' ';
      ++at;
    }
    out += word;
    at += width(word);
    first = false;
  }
  out += '\n';
}

std::string paragraph(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const auto line = text.substr(0, end);
    const auto indent = std::min(line.find_first_not_of(' '), line.size());
    out += std::string(indent, ' ');
    add_wrapped(out, line.substr(indent), indent, indent);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

// "  -o, --output FILE     what it is"
void add_row(std::string& out, const std::string& name, std::string_view text) {
  out += "  " + name;
  std::size_t at = 2 + width(name);
  if (at + 2 > kText) {
    out += '\n';
    at = 0;
  }
  out += std::string(kText - at, ' ');
  add_wrapped(out, text, kText, kText);
}

std::string option_name(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name(true);
  std::string name;
  for (const auto& letter : option.get_snames()) name += fmt::format("-{}, ", letter);
  if (name.empty()) name = "    ";
  name += "--" + option.get_lnames().front();
  const std::string label = option.get_option_text();
  return label.find_first_not_of(' ') == std::string::npos ? name : fmt::format("{} {}", name, label);
}

bool is_usual(const CLI::Option& option, unsigned command) {
  if (option.get_positional() || option.get_group() == kOwn) return true;
  const auto* row = config::find(option.get_lnames().front(), command);
  return row == nullptr || (row->usual & command) != 0;
}

std::string usage_of(const CLI::App& app) {
  std::string text = fmt::format("Usage: detent {}", app.get_name());
  std::string named;
  const unsigned command = config::command_of(app.get_name());
  for (const auto* option : app.get_options()) {
    if (option->get_positional()) {
      const auto name = option->get_name(true);
      const auto* row = config::find(name, command);  // a file of options may hold it as well
      const bool required = option->get_required() || (row != nullptr && (row->required & command) != 0);
      text += required ? " " + name : fmt::format(" [{}]", name);
    } else if (const auto* row = config::find(option->get_lnames().front(), command);
               row != nullptr && (row->required & command) != 0) {
      named += fmt::format(" {} {}", row->letter.empty() ? "--" + std::string(row->name) : row->letter, row->label);
    }
  }
  return text + named + " [OPTIONS]\n";
}

std::string help_of_command(const CLI::App& app, bool all) {
  const unsigned command = config::command_of(app.get_name());
  const auto options = app.get_options();
  all = all || options.size() <= kFew;
  std::string out = paragraph(app.get_description()) + "\n" + usage_of(app);
  auto groups = app.get_groups();
  std::stable_partition(groups.begin(), groups.end(), [](const auto& group) { return group != kOwn; });
  if (!all) out += "\nOptions:\n";
  for (const auto& group : groups) {
    if (group.empty()) continue;  // earlier names
    std::string rows;
    for (const auto* option : options) {
      if (option->get_group() == group && (all || is_usual(*option, command)))
        add_row(rows, option_name(*option), option->get_description());
    }
    if (all && !rows.empty()) out += fmt::format("\n{}:\n", group == kOwn ? "Help" : group);
    out += rows;  // the usual ones are few enough to stand together
  }
  if (!app.get_footer().empty()) out += "\n" + paragraph(app.get_footer());
  if (!all) out += fmt::format("\nMore options: detent {} --help-all, or man detent\n", app.get_name());
  return out;
}

std::string help_of_program(const CLI::App& app) {
  std::string out = paragraph(app.get_description()) + "\nUsage: detent COMMAND [OPTIONS]\n\nCommands:\n";
  for (const auto* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_group().empty()) add_row(out, command->get_name(), command->get_description());
  }
  return out + "\n" + paragraph(app.get_footer());
}

}  // namespace

std::string HelpFormatter::make_help(const CLI::App* app, std::string, CLI::AppFormatMode mode) const {
  if (app->get_parent() == nullptr) return help_of_program(*app);
  return help_of_command(*app, mode == CLI::AppFormatMode::All);
}

}  // namespace detent::cli
