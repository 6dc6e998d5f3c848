#include "config/option.h"

#include <fmt/format.h>

#include "base/error.h"
#include "config/value.h"

namespace detent::config {
namespace {

struct AnyOptions {
  QuantizeOptions quantize;
  CalibrateOptions calibrate;
  CompareOptions compare;
  InspectOptions inspect;
  BenchOptions bench;
  CheckOptions check;
  VerifyOptions verify;
  SearchOptions search;
  CommandLine line;
};

}  // namespace

const std::vector<Option>& options() {
  static const std::vector<Option> all = [] {
    std::vector<Option> list;
    for (auto* rows : {&input_options, &format_options, &weights_only_options, &accuracy_options, &speed_options,
                       &finetune_options, &running_options, &output_options, &search_options}) {
      for (auto& option : rows()) list.push_back(std::move(option));
    }
    return list;
  }();
  return all;
}

std::string Option::spelled(std::string_view by) const {
  return positional() ? std::string(by) : fmt::format("{}{}", detail ? "--set " : "--", by);
}

std::vector<Option> only_for(unsigned results, std::span<const Option> rows) {
  std::vector<Option> list(rows.begin(), rows.end());
  for (auto& option : list) {
    if (option.results == kAnyResult) option.results = results;
  }
  return list;
}

std::span<const std::pair<Command, std::string_view>> commands() {
  static constexpr std::pair<Command, std::string_view> kCommands[] = {
      {kQuantize, "quantize"}, {kCalibrate, "calibrate"}, {kPlan, "plan"},
      {kCompare, "compare"},   {kInspect, "inspect"},     {kBench, "bench"},
      {kCheck, "check"},       {kVerify, "verify"},       {kSearch, "search"}};
  return kCommands;
}

unsigned command_of(std::string_view name) {
  for (const auto& [command, its_name] : commands()) {
    if (its_name == name) return command;
  }
  return 0;
}

std::vector<std::string_view> names(unsigned commands) {
  std::vector<std::string_view> all;
  for (const auto& option : options()) {
    if (option.positional() || (option.commands & commands) == 0) continue;
    all.push_back(option.name);
    if (!option.off.empty()) all.push_back(option.off);
  }
  return all;
}

const Option* find(std::string_view name, unsigned commands) {
  for (const auto& option : options()) {
    const bool is_named = !name.empty() && (option.name == name || option.off == name);
    if (is_named && (option.commands & commands) != 0 && !option.positional()) return &option;
  }
  return nullptr;
}

Member any_member(const Option& option) {
  static AnyOptions any;
  for (const auto& member : {option.member(any.quantize), option.member(any.calibrate), option.member(any.compare),
                             option.member(any.inspect), option.member(any.bench), option.member(any.check),
                             option.member(any.verify), option.member(any.search), option.member(any.line)}) {
    if (member) return *member;
  }
  throw internal_error("an option without a member");
}

std::vector<std::string> words_of(const Option& option) {
  std::vector<std::string> texts;
  if (option.texts != nullptr) {
    for (auto& entry : option.texts()) texts.push_back(std::move(entry.first));
  }
  const Member member = any_member(option);
  const auto take = [&](std::span<const EnumName> words) {
    for (const auto& word : words) texts.emplace_back(word.text);
  };
  if (const auto* choice = std::get_if<Choice>(&member)) take(choice->words);
  if (const auto* choices = std::get_if<Choices>(&member)) take(choices->words);
  return texts;
}

std::string default_of(const Option& option) {
  if (!option.fallback.empty()) return std::string(option.fallback);
  const std::string value = text_of(any_member(option), option.form);
  return value == "false" && option.off.empty() ? std::string() : value;
}

std::string full_help(const Option& option) {
  std::string text = option.only.empty() ? std::string(option.help) : fmt::format("{}: {}", option.only, option.help);
  if (option.texts != nullptr) {
    for (const auto& [name, meaning] : option.texts()) text += fmt::format("; {}: {}", name, meaning);
  } else if (const auto words = words_of(option); !words.empty() && option.label.find('|') == std::string_view::npos) {
    text += fmt::format("; one of {}", fmt::join(words, ", "));
  }
  return text;
}

}  // namespace detent::config
