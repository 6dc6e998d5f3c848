#include "cli/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/file.h"
#include "base/text.h"
#include "cli/isolation.h"
#include "cli/output/output.h"
#include "config/presets.h"
#include "run/model/target_runtime.h"
#include "run/samples/samples.h"

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

std::vector<GivenOption> DeclaredOptions::read(Options& options, config::CommandLine& line) const {
  auto all = given();
  refuse_text(all);
  check_required(all);
  std::vector<std::string_view> paths;
  for (const auto& entry : all) {
    if (entry.from_file) options.command.push_back(as_word(entry));
    if (entry.option->name == "samples" && entry.texts.front() == "0")
      throw usage_error("--samples 0: no sample would be used", "leave it out to use all of them");
    auto member = entry.option->member(options);
    if (!member) member = entry.option->member(line);
    config::assign(*entry.option, *member, entry.texts, entry.name);
    paths.push_back(entry.option->at.path);
  }
  if (line.isolate && !is_isolated) throw WantsIsolation();
  constexpr unsigned kWithPreset = config::kQuantize | config::kPlan | config::kCalibrate;
  if ((command_ & kWithPreset) != 0) run::name_target(options);
  config::resolve(options, paths, command_);
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

// By a signal. The others end soon after a stop is requested.
constexpr unsigned kEndedAtOnce = config::kPlan | config::kInspect | config::kCheck;

void add_command(CLI::App& app, const Subcommand& subcommand, Signals& signals, const std::vector<std::string>& words) {
  const auto named =
      std::ranges::find(config::kCommands, subcommand.command, [](const auto& row) { return row.first; });
  auto* added = app.add_subcommand(std::string(named->second), subcommand.description);
  const auto declared = std::make_shared<DeclaredOptions>(*added, subcommand.command);
  added->footer(subcommand.footer);
  added->callback([declared, &subcommand, &signals, words] {
    Call call;
    call.given = declared->read(call.options, call.line);
    call.options.command.insert(call.options.command.begin(), words.begin(), words.end());
    if ((subcommand.command & kEndedAtOnce) == 0) call.options.stop = signals.token();
    subcommand.run(call);
  });
}

namespace {

Error config_file_error(const std::string& path, const std::string& what) {
  return {ErrorKind::usage, fmt::format("--config: '{}': {}", path, what),
          "write options as on the command line, without dashes: 'method: mse', 'exclude-nodes: [a, b]'"};
}

Error no_option(const std::string& path, const std::string& name, config::Command command) {
  const std::string meant = did_you_mean(name, config::names(command));
  return {ErrorKind::usage, fmt::format("--config: '{}': there is no option '{}'", path, name),
          meant.empty() ? "docs/options.md lists all options" : meant};
}

YAML::Node load(const std::string& path) {
  YAML::Node root;
  try {
    root = YAML::Load(read_small_file(path, "the configuration"));
  } catch (const Error& e) {
    throw config_file_error(path, fmt::format("cannot be read ({})", e.what()));
  } catch (const YAML::Exception& e) {
    throw config_file_error(path, fmt::format("line {}: {}", e.mark.line + 1, e.msg));
  }
  if (!root.IsMap()) throw config_file_error(path, "is not a map of options");
  return root;
}

const config::Option* find(const std::string& key, config::Command command) {
  if (const auto* option = config::find(key, command)) return option;
  for (const auto& option : config::options()) {
    if (option.positional() && (option.commands & command) != 0 && key_of(option) == key) return &option;
  }
  return nullptr;
}

// A list is taken entry by entry, so that each may have commas in it.
GivenOption given_by_node(const std::string& path, const config::Option& option, const std::string& name,
                          const YAML::Node& value) {
  if (value.IsScalar()) return given_by_text(option, name, value.Scalar());
  if (!value.IsSequence()) throw config_file_error(path, fmt::format("'{}' is neither a value nor a list", name));
  GivenOption given{&option, option.spelled(name), {}};
  for (const auto& item : value) {
    if (!item.IsScalar()) throw config_file_error(path, fmt::format("'{}' contains more than plain values", name));
    given.texts.push_back(item.Scalar());
  }
  return given;
}

}  // namespace

std::string key_of(const config::Option& option) {
  std::string name(option.name);
  if (option.positional())
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

std::vector<GivenOption> read_config_file(const std::string& path, config::Command command) {
  std::vector<GivenOption> all;
  std::set<const config::Option*> seen;
  for (const auto& entry : load(path)) {
    if (!entry.first.IsScalar()) throw config_file_error(path, "is not a map of options");
    std::string name = entry.first.Scalar();
    std::replace(name.begin(), name.end(), '_', '-');
    const auto* option = find(name, command);
    if (option == nullptr) throw no_option(path, name, command);
    if (option->name == "config") throw config_file_error(path, "names another file");
    if (option->name == "set") throw config_file_error(path, "has 'set', where options stand by their names");
    if (!seen.insert(option).second) throw config_file_error(path, fmt::format("has '{}' twice", name));
    const auto& value = entry.second;
    const bool is_empty =
        value.IsNull() || (value.IsScalar() && value.Scalar().empty()) || (value.IsSequence() && value.size() == 0);
    if (!is_empty) all.push_back(given_by_node(path, *option, name, value));
  }
  return all;
}

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
  for (const auto& [bit, taker] : config::kCommands) {
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

std::unique_ptr<SampleStream> take_pictures(const config::CommandLine& line, const std::filesystem::path& model,
                                            Options& options) {
  if (!line.images) {
    if (line.image_preset != data::ImagePreset::none || line.image_size != 0)
      throw usage_error("--image-preset and --set image-size go with --images", "give the folder of the pictures");
    return nullptr;
  }
  if (options.calibration_data && !options.calibration_data->empty())
    throw usage_error("--images and --calibration-data both give samples", "leave one of them out");
  const auto pictures = run::with_inputs_of({*line.images, line.image_preset, line.image_size}, options);
  auto stream = run::open_pictures(pictures, model, options.max_samples, options.resources);
  options.samples = stream.get();
  return stream;
}

}  // namespace detent::cli
