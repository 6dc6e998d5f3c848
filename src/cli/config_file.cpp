#include "cli/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "base/nearest_word.h"
#include "base/small_file.h"
#include "detent/error.h"

namespace detent::cli {
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

}  // namespace detent::cli
