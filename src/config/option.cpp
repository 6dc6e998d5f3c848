#include "config/option.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "detent/device.h"

namespace detent::config {
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

std::vector<Option> table(const Option& common, std::span<const Option> rows) {
  std::vector<Option> list(rows.begin(), rows.end());
  for (auto& option : list) {
    if (option.commands == 0) option.commands = common.commands;
    if (option.affects == Affects::undeclared) option.affects = common.affects;
    if (option.results == kAnyResult) option.results = common.results;
    if (option.group.empty()) option.group = common.group;
  }
  return list;
}

std::vector<Option> joined(std::initializer_list<std::vector<Option>> tables) {
  std::vector<Option> all;
  for (const auto& rows : tables) all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

unsigned command_of(std::string_view name) {
  for (const auto& [command, its_name] : kCommands) {
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
  static Options fresh;
  static CommandLine line;
  return option.of_library() ? option.at.library(fresh) : option.at.command_line(line);
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

namespace {

using Texts = std::vector<std::string>;

Error wrong(std::string_view option, std::string_view text, const char* kind) {
  return usage_error(fmt::format("{}: '{}' is not {}", option, text, kind));
}

template <class T>
std::optional<T> parse(std::string_view text) {
  T value{};
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

template <class T>
T number(std::string_view option, std::string_view text, const char* kind) {
  const auto value = parse<T>(text);
  if (!value) throw wrong(option, text, kind);
  return *value;
}

std::uint64_t count(std::string_view option, std::string_view text) {
  if (text.starts_with('-') && text.size() > 1)
    throw usage_error(fmt::format("{} must not be negative", option), "give a whole number of 0 or more");
  return number<std::uint64_t>(option, text, "a whole number");
}

double real(std::string_view option, std::string_view text) {
  const auto value = number<double>(option, text, "a number");
  if (std::isnan(value)) throw wrong(option, text, "a number");
  return value;
}

// "250us", "8ms", "1.5s", "10min", "2h"; a number alone is in seconds.
double seconds(std::string_view option, std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"ms", 1e-3}, {"us", 1e-6}, {"s", 1},
                                                            {"min", 60},  {"h", 3600},  {"", 1}};
  for (const auto& [unit, factor] : kUnits) {
    if (!text.ends_with(unit)) continue;
    if (const auto value = parse<double>(text.substr(0, text.size() - unit.size()))) return factor * *value;
  }
  throw wrong(option, text, "a time, as in 8ms, 90s, 10min or 2h");
}

bool parse_bool(std::string_view option, std::string_view text) {
  for (const auto* yes : {"true", "yes", "on", "1"}) {
    if (text == yes) return true;
  }
  for (const auto* no : {"false", "no", "off", "0"}) {
    if (text == no) return false;
  }
  throw wrong(option, text, "true or false");
}

// "NAME=VALUE"; the name may hold '=' signs, the value does not.
std::pair<std::string, std::string> split_assignment(std::string_view option, const std::string& text) {
  const auto at = text.rfind('=');
  if (at != std::string::npos && at > 0 && at + 1 < text.size()) return {text.substr(0, at), text.substr(at + 1)};
  throw wrong(option, text, "NAME=VALUE");
}

std::pair<float, float> range(std::string_view option, const std::string& text) {
  const auto comma = text.find(',');
  if (comma == std::string::npos) throw wrong(option, text, "MIN,MAX");
  const std::string_view all(text);
  return {number<float>(option, all.substr(0, comma), "a number in MIN,MAX"),
          number<float>(option, all.substr(comma + 1), "a number in MIN,MAX")};
}

// Replaces the overrides of one kind and keeps the others. Methods come first: a range that is given takes precedence.
void set_overrides(std::string_view option, Form form, const Texts& texts, std::vector<TensorOverride>& overrides) {
  const bool ranges = form == Form::tensor_range;
  std::erase_if(overrides, [&](const auto& o) { return o.range.has_value() == ranges; });
  std::vector<TensorOverride> added;
  for (const auto& text : texts) {
    const auto [name, value] = split_assignment(option, text);
    TensorOverride entry{name, {}, {}};
    if (ranges) {
      entry.range = range(option, value);
    } else {
      entry.method = static_cast<CalibrationMethod>(value_of(enum_names<CalibrationMethod>(), value, option));
    }
    added.push_back(std::move(entry));
  }
  overrides.insert(ranges ? overrides.end() : overrides.begin(), added.begin(), added.end());
}

// "NAME:1x3x224x224"; the name itself may hold colons, as TensorFlow's do.
void add_shape(const std::string& text, Shapes& shapes) {
  const auto wrong_shape = [&] {
    return usage_error(fmt::format("'{}' is not a shape", text), "write it like NAME:1x3x224x224");
  };
  const auto colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) throw wrong_shape();
  std::vector<std::int64_t> dims;
  const char* at = text.data() + colon + 1;
  const char* end = text.data() + text.size();
  while (at != end) {
    std::int64_t value = 0;
    const auto [next, status] = std::from_chars(at, end, value);
    if (status != std::errc() || value < 0 || (next != end && *next != 'x')) throw wrong_shape();
    dims.push_back(value);
    at = next == end ? end : next + 1;
  }
  shapes.insert({text.substr(0, colon), std::move(dims)});
}

struct Setter {
  std::string_view name;
  const Texts& texts;
  Form form;

  const std::string& text() const { return texts.front(); }
  double number_of() const { return form == Form::duration ? seconds(name, text()) : real(name, text()); }
  std::uint64_t size() const { return form == Form::bytes ? parse_size(text()) : count(name, text()); }

  void operator()(bool* to) const { *to = parse_bool(name, text()); }
  void operator()(std::optional<bool>* to) const { *to = parse_bool(name, text()); }
  void operator()(int* to) const { *to = number<int>(name, text(), "a whole number"); }
  void operator()(std::int64_t* to) const { *to = number<std::int64_t>(name, text(), "a whole number"); }
  void operator()(std::uint64_t* to) const { *to = size(); }
  void operator()(std::optional<std::uint64_t>* to) const { *to = size(); }
  void operator()(double* to) const { *to = number_of(); }
  void operator()(std::optional<double>* to) const { *to = number_of(); }
  void operator()(std::string* to) const { *to = text(); }
  void operator()(std::filesystem::path* to) const { *to = text(); }
  void operator()(std::optional<std::filesystem::path>* to) const { *to = text(); }
  void operator()(std::vector<std::string>* to) const { *to = texts; }
  void operator()(std::vector<double>* to) const {
    std::vector<double> values;
    for (const auto& t : texts) values.push_back(real(name, t));
    *to = std::move(values);
  }
  void operator()(std::vector<int>* to) const { *to = parse_devices(fmt::format("{}", fmt::join(texts, ","))); }
  void operator()(std::vector<std::filesystem::path>* to) const { to->assign(texts.begin(), texts.end()); }
  void operator()(std::pair<double, double>* to) const {
    if (texts.size() != 2) throw usage_error(fmt::format("{} takes two numbers, as in 20,2", name));
    *to = {real(name, texts[0]), real(name, texts[1])};
  }
  void operator()(std::vector<TensorOverride>* to) const { set_overrides(name, form, texts, *to); }
  void operator()(Shapes* to) const {
    for (const auto& t : texts) add_shape(t, *to);
  }
  void operator()(const Choice& to) const { to.set(to.at, value_of(to.words, text(), name)); }
  void operator()(const Choices& to) const {
    std::vector<int> values;
    for (const auto& t : texts) values.push_back(value_of(to.words, t, name));
    to.set(to.at, values);
  }
};

template <class T>
constexpr bool kTakesSeveral =
    std::is_same_v<T, std::vector<std::string>*> || std::is_same_v<T, std::vector<double>*> ||
    std::is_same_v<T, std::vector<int>*> || std::is_same_v<T, std::vector<std::filesystem::path>*> ||
    std::is_same_v<T, std::pair<double, double>*> || std::is_same_v<T, std::vector<TensorOverride>*> ||
    std::is_same_v<T, Shapes*> || std::is_same_v<T, Choices>;

}  // namespace

void assign(const Option& option, const Member& member, const Texts& texts, std::string_view name) {
  const bool several = std::visit([]<class T>(const T&) { return kTakesSeveral<T>; }, member);
  if (texts.empty() || (!several && texts.size() != 1)) throw usage_error(fmt::format("{} takes one value", name));
  std::visit(Setter{name, texts, option.form}, member);
}

bool is_list(const Member& member) {
  return std::holds_alternative<std::vector<std::string>*>(member) ||
         std::holds_alternative<std::vector<double>*>(member) ||
         std::holds_alternative<std::pair<double, double>*>(member) || std::holds_alternative<Choices>(member);
}

bool is_flag(const Member& member) {
  return std::holds_alternative<bool*>(member) || std::holds_alternative<std::optional<bool>*>(member);
}

Texts split_list(const std::string& text) {
  Texts parts;
  std::size_t from = 0;
  while (true) {
    const auto comma = text.find(',', from);
    if (comma != from && from < text.size()) parts.push_back(text.substr(from, comma - from));
    if (comma == std::string::npos) return parts;
    from = comma + 1;
  }
}

nlohmann::json json_of(const Member& member) {
  using nlohmann::json;
  return std::visit(
      Overloaded{[](const Choice& c) { return json(word_of(c.words, c.get(c.at))); },
                 [](const Choices& c) {
                   json list = json::array();
                   for (const int value : c.get(c.at)) list.push_back(word_of(c.words, value));
                   return list;
                 },
                 [](const std::filesystem::path* p) { return json(p->string()); },
                 [](const std::optional<std::filesystem::path>* p) { return *p ? json((*p)->string()) : json(); },
                 [](const std::vector<std::filesystem::path>* paths) {
                   json list = json::array();
                   for (const auto& p : *paths) list.push_back(p.string());
                   return list;
                 },
                 [](const std::vector<TensorOverride>* overrides) {
                   json list = json::array();
                   for (const auto& o : *overrides) {
                     list.push_back({o.tensor,
                                     o.method ? json(word_of(enum_names<CalibrationMethod>(), int(*o.method))) : json(),
                                     o.range ? json{o.range->first, o.range->second} : json()});
                   }
                   return list;
                 },
                 []<class T>(const std::optional<T>* value) { return *value ? json(**value) : json(); },
                 []<class T>(const T* value) { return json(*value); }},
      member);
}

std::string text_of(const Member& member, Form form) {
  const auto json = json_of(member);
  if (json.is_null()) return {};
  if (json.is_string()) return json.get<std::string>();
  if (form == Form::bytes && json.is_number()) return format_size(json.get<std::uint64_t>());
  const auto plain = [](const nlohmann::json& item) {
    if (item.is_string()) return item.get<std::string>();
    return item.is_number_float() ? fmt::format("{}", item.get<double>()) : json_text(item);
  };
  if (!json.is_array()) return json.is_object() ? std::string() : plain(json);
  Texts parts;
  for (const auto& item : json) parts.push_back(plain(item));
  return fmt::format("{}", fmt::join(parts, ","));
}

void copy(const Member& from, const Member& to) {
  std::visit(Overloaded{[&](const Choice& c) { c.set(c.at, std::get<Choice>(from).get(std::get<Choice>(from).at)); },
                        [&](const Choices& c) { c.set(c.at, std::get<Choices>(from).get(std::get<Choices>(from).at)); },
                        [&]<class T>(T* value) { *value = *std::get<T*>(from); }},
             to);
}

std::string_view type_of(const Member& member, Form form) {
  if (form == Form::bytes) return "size";
  if (is_flag(member)) return "flag";
  return std::visit(
      Overloaded{[](const Choice&) { return "choice"; }, [](const Choices&) { return "choices"; },
                 [](std::filesystem::path*) { return "path"; },
                 [](std::optional<std::filesystem::path>*) { return "path"; },
                 [](std::vector<std::filesystem::path>*) { return "paths"; },
                 [](std::vector<std::string>*) { return "texts"; }, [](std::vector<double>*) { return "numbers"; },
                 [](std::pair<double, double>*) { return "pair"; }, [](std::vector<int>*) { return "devices"; },
                 [](std::vector<TensorOverride>*) { return "overrides"; }, [](Shapes*) { return "shapes"; },
                 [](std::string*) { return "text"; }, [](double*) { return "number"; },
                 [](std::optional<double>*) { return "number"; }, [](const auto&) { return "integer"; }},
      member);
}

}  // namespace detent::config
