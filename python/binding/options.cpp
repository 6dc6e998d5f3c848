#include "options.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "config/option.h"
#include "config/presets.h"
#include "fields.h"
#include "run/model/target_runtime.h"

namespace detent::python {

// One tensor's entry in the list `overrides`.
template <>
struct Fields<TensorOverride> {
  using S = TensorOverride;
  static constexpr Field<S> all[] = {field<&S::tensor>("tensor"), field<&S::method>("method"),
                                     field<&S::range>("range")};
};

namespace {

using config::Option;

// QuantConfig's members stand beside those of the call.
std::string_view python_path(const Option& option) {
  std::string_view path = option.at.path;
  if (path.starts_with("config.")) path.remove_prefix(std::string_view("config.").size());
  return path;
}

const Option* find(std::string_view path, config::Command command) {
  for (const auto& option : config::options()) {
    const bool of_library = option.of_library();
    if (of_library && (option.commands & command) != 0 && python_path(option) == path) return &option;
  }
  return nullptr;
}

bool is_group(std::string_view name, config::Command command) {
  const std::string prefix = std::string(name) + ".";
  const auto& all = config::options();
  return std::any_of(all.begin(), all.end(), [&](const Option& option) {
    return (option.commands & command) != 0 && python_path(option).starts_with(prefix);
  });
}

void set(const Option& option, const config::Member& member, nb::handle value, const std::string& where) {
  const bool is_text = nb::isinstance<nb::str>(value);
  const auto text = [&] { return word_of(value); };
  const auto size = [&](auto* to) {
    if (option.form == config::Form::bytes && is_text) {
      *to = parse_size(text());
    } else {
      read(value, *to, where);
    }
  };
  std::visit(
      config::Overloaded{[&](const config::Choice& to) { to.set(to.at, config::value_of(to.words, text(), where)); },
                         [&](const config::Choices& to) {
                           std::vector<std::string> texts;
                           read(value, texts, where);
                           std::vector<int> values;
                           for (const auto& t : texts) values.push_back(config::value_of(to.words, t, where));
                           to.set(to.at, values);
                         },
                         [&](std::uint64_t* to) { size(to); }, [&](std::optional<std::uint64_t>* to) { size(to); },
                         [&](std::vector<int>* to) {
                           if (is_text) {
                             *to = parse_devices(text());
                           } else {
                             read(value, *to, where);
                           }
                         },
                         [&](auto* to) { read(value, *to, where); }},
      member);
}

// Members that no text could say, so that the schema does not have them.
bool set_unlisted(Options& options, config::Command command, std::string_view path, nb::handle value) {
  constexpr unsigned kCalibrating = config::kQuantize | config::kCalibrate;
  if (path == "command" && (command & kCalibrating) != 0) {
    read(value, options.command, "command");
  } else if (path == "accuracy.score" && command == config::kQuantize) {
    read(value, options.accuracy.score, "score");
  } else if (path == "program" && command == config::kBench) {
    read(value, options.program, "program");
  } else {
    return false;
  }
  return true;
}

class Reader {
 public:
  Reader(Options& options, config::Command command) : options_(options), command_(command) {}

  void read_all(const nb::dict& given) {
    read_group(given, {});
    if ((command_ & (config::kQuantize | config::kCalibrate)) != 0) run::name_target(options_);
    config::resolve(options_, given_, command_);
  }

 private:
  void read_group(const nb::dict& given, const std::string& group) {
    for (const auto& [key, value] : given) {
      const auto name = nb::cast<std::string>(key);
      const std::string path = group.empty() ? name : group + "." + name;
      if (group.empty() && is_group(name, command_)) {
        if (!nb::isinstance<nb::dict>(value))
          throw usage_error(fmt::format("{}: {} does not name its options", name, text_of(value)));
        read_group(nb::borrow<nb::dict>(value), name);
      } else if (const auto* option = find(path, command_)) {
        set(*option, *option->member(options_), value, name);
        given_.push_back(option->at.path);
      } else if (!set_unlisted(options_, command_, path, value)) {
        throw usage_error(group.empty() ? fmt::format("there is no option '{}'", name)
                                        : fmt::format("{} has no option '{}'", group, name));
      }
    }
  }

  Options& options_;
  config::Command command_;
  std::vector<std::string_view> given_;
};

}  // namespace

Options read_options(const nb::dict& given, config::Command command) {
  Options options;
  Reader(options, command).read_all(given);
  return options;
}

std::vector<std::string> option_names(config::Command command) {
  std::vector<std::string> names;
  for (const auto& option : config::options()) {
    if ((option.commands & command) == 0 || !option.of_library()) continue;
    const auto path = python_path(option);
    std::string name(path.substr(0, path.find('.')));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

}  // namespace detent::python
