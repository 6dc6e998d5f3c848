#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/nearest_word.h"
#include "cli/config_file.h"
#include "cli/output/output.h"
#include "cli/usage_errors.h"

namespace detent::cli {
namespace {

using config::Member;

// What a value of --set says: "damping=0.1", or "two-sided" of a flag.
GivenOption given_by_setting(const std::string& text, const std::string& command) {
  const auto equals = text.find('=');
  std::string name = text.substr(0, equals);
  std::replace(name.begin(), name.end(), '_', '-');
  const auto* option = config::find(name, config::command_of(command));
  if (option == nullptr) {
    if (const auto of_others = option_of_others(command, name)) throw *of_others;
    const auto meant = did_you_mean(name, config::names(config::command_of(command)));
    throw usage_error(fmt::format("--set: there is no option '{}'", name),
                      meant.empty() ? "docs/options.md lists all options" : meant);
  }
  if (!option->detail) throw usage_error(fmt::format("--set: '{}' is an option of its own", name), "give --" + name);
  if (equals == std::string::npos && !config::is_flag(config::any_member(*option)))
    throw usage_error(fmt::format("--set {} needs a value", name),
                      fmt::format("give --set {}={}", name, option->label));
  return given_by_text(*option, name, equals == std::string::npos ? "true" : text.substr(equals + 1));
}

bool repeats(const Member& member) {
  return config::is_list(member) || std::holds_alternative<std::vector<TensorOverride>*>(member) ||
         std::holds_alternative<config::Shapes*>(member);
}

// Entries of a list that is given in parts are one list.
void add(GivenOption given, std::vector<GivenOption>& all) {
  const auto before = std::find_if(all.begin(), all.end(), [&](const auto& g) { return g.option == given.option; });
  if (before == all.end() || !repeats(config::any_member(*given.option))) return all.push_back(std::move(given));
  before->texts.insert(before->texts.end(), given.texts.begin(), given.texts.end());
}

std::string dashed(std::string_view name) { return fmt::format("--{}", name); }

std::string with_default(std::string text, const std::string& value) {
  return value.empty() ? text : fmt::format("{} (default: {})", text, value);
}

}  // namespace

GivenOption given_by_text(const config::Option& option, std::string_view name, const std::string& text) {
  const Member member = config::any_member(option);
  GivenOption given{&option, option.spelled(name), {text}};
  if (config::is_list(member)) given.texts = config::split_list(text);
  if (config::is_flag(member) && name == option.off) {
    bool value = false;
    config::assign(option, &value, {text}, given.name);
    given.texts = {value ? "false" : "true"};
  }
  return given;
}

std::string as_word(const GivenOption& given) {
  const auto& option = *given.option;
  return fmt::format("{}{}={}", option.detail ? "--set=" : "--", option.name, fmt::join(given.texts, ","));
}

DeclaredOptions::DeclaredOptions(CLI::App& app, config::Command command) : app_(app), command_(command) {
  for (const auto& option : config::options()) {
    if ((option.commands & command) != 0) declare(option);
  }
  auto* quiet = app.get_option_no_throw("--quiet");
  auto* verbose = app.get_option_no_throw("--verbose");
  if (quiet != nullptr && verbose != nullptr) quiet->excludes(verbose);
}

void DeclaredOptions::declare(const config::Option& option) {
  const Member member = config::any_member(option);
  // What few people need is in no help, and may be given by --set as well: lines of before keep their meaning.
  const std::string group(option.detail ? "" : option.group);
  const std::string value = config::default_of(option);
  if (config::is_flag(member)) {
    const bool toggles = !option.off.empty() && option.fallback.empty();
    const auto add = [&](std::string_view name, const std::string& help) {
      const bool has_letter = name == option.name && !option.letter.empty();
      const auto names = has_letter ? fmt::format("{},{}", option.letter, dashed(name)) : dashed(name);
      declared_[app_.add_flag(names, help)->group(group)] = {&option, std::string(name)};
    };
    if (option.off.empty() || !toggles) {
      add(option.name, with_default(config::full_help(option), value));
    } else {
      add(option.name, config::full_help(option) + (value == "true" ? " (default)" : ""));
    }
    if (!option.off.empty()) {
      const bool is_default = toggles && value == "false";
      const std::string only = option.only.empty() ? "" : fmt::format("{}: ", option.only);
      add(option.off, fmt::format("{}{}{}", only, option.off_help, is_default ? " (default)" : ""));
    }
    return;
  }
  const std::string help = with_default(config::full_help(option), value);
  std::string name = option.positional() ? std::string(option.name) : dashed(option.name);
  if (!option.letter.empty()) name = fmt::format("{},{}", option.letter, name);
  CLI::Option* added = nullptr;
  if (repeats(member)) {
    added = app_.add_option_function<std::vector<std::string>>(
                    name, [](const auto&) {}, help)
                ->allow_extra_args(false);
  } else if (std::holds_alternative<std::vector<std::filesystem::path>*>(member)) {
    added = app_.add_option_function<std::vector<std::string>>(
        name, [](const auto&) {}, help);
  } else {
    added = app_.add_option_function<std::string>(
        name, [](const auto&) {}, help);
  }
  added->group(group)->option_text(option.label.empty() ? " " : std::string(option.label));
  declared_[added] = {&option, std::string(option.name)};
}

std::vector<GivenOption> DeclaredOptions::given_on_command_line() const {
  std::vector<GivenOption> all;
  std::map<const CLI::Option*, std::size_t> taken;  // of the occurrences of each flag
  for (const auto* occurrence : app_.parse_order()) {
    const auto found = declared_.find(occurrence);
    if (found == declared_.end()) continue;
    const auto& [option, name] = found->second;
    const auto& results = occurrence->results();
    const std::size_t before = taken[occurrence]++;
    if (config::is_flag(config::any_member(*option))) {
      all.push_back(given_by_text(*option, name, results.at(std::min(before, results.size() - 1))));
      continue;
    }
    if (before > 0) continue;  // it has all results
    if (option->name == "set") {
      for (const auto& setting : results) add(given_by_setting(setting, app_.get_name()), all);
      continue;
    }
    GivenOption given{option, option->spelled(name), {}};
    for (const auto& text : results) {
      auto part = given_by_text(*option, name, text).texts;
      given.texts.insert(given.texts.end(), part.begin(), part.end());
    }
    all.push_back(std::move(given));
  }
  return all;
}

std::vector<GivenOption> DeclaredOptions::given() const {
  auto typed = given_on_command_line();
  std::set<const config::Option*> named;
  std::vector<GivenOption> all;
  for (const auto& entry : typed) named.insert(entry.option);
  for (const auto& entry : typed) {
    if (entry.option->name != "config") continue;
    for (auto& from_file : read_config_file(entry.texts.front(), command_)) {
      if (named.contains(from_file.option)) continue;
      from_file.from_file = true;
      all.push_back(std::move(from_file));
    }
  }
  all.insert(all.end(), typed.begin(), typed.end());
  return all;
}

void DeclaredOptions::refuse_text(const std::vector<GivenOption>& given) {
  for (const auto& entry : given) {
    for (const auto& text : entry.texts) {
      if (text.starts_with("hf://"))
        throw usage_error(fmt::format("'{}' is on the Hugging Face hub, which this program does not reach", text),
                          "run python3 -m detent (docs/python.md), or fetch it first");
    }
    if (entry.option->name != "calibration-text") continue;
    throw usage_error("--calibration-text needs the model's tokenizer, which this program does not have",
                      "run python3 -m detent (docs/python.md), or give token ids by --calibration-data");
  }
  for (const auto& entry : given) {
    if (entry.option->name == "tokenizer" || entry.option->name == "text-length")
      throw usage_error(fmt::format("{} is for --calibration-text", entry.name),
                        "leave it out, or give a text as well");
  }
}

void DeclaredOptions::check_required(const std::vector<GivenOption>& given) const {
  const auto has = [&](std::string_view name) {
    return std::any_of(given.begin(), given.end(), [&](const auto& entry) { return entry.option->name == name; });
  };
  for (const auto& option : config::options()) {
    if ((option.required & command_) == 0) continue;
    if (option.name == "calibration-data" && has("images")) continue;
    if (!has(option.name))
      throw usage_error(fmt::format("{}{} is required", option.positional() ? "" : "--", option.name),
                        fmt::format("see: detent help {}", app_.get_name()));
  }
}

}  // namespace detent::cli
