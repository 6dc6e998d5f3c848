#include "cli/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <optional>

#include "detent/error.h"

namespace detent::cli {
namespace {

constexpr const char* kOption = "--config";

Error wrong(const std::string& path, const std::string& what) {
  return {ErrorKind::usage, fmt::format("--config: '{}': {}", path, what),
          "write options as on the command line, without dashes: 'method: mse', 'exclude-nodes: [a, b]'"};
}

std::string text_of(const std::string& path, const std::string& key, const YAML::Node& value) {
  if (value.IsScalar()) return value.Scalar();
  std::string joined;
  if (!value.IsSequence()) throw wrong(path, fmt::format("'{}' is neither a value nor a list", key));
  for (const auto& item : value) {
    if (!item.IsScalar()) throw wrong(path, fmt::format("'{}' contains more than plain values", key));
    joined += (joined.empty() ? "" : ",") + item.Scalar();
  }
  return joined;
}

bool is_given(const std::vector<std::string>& words, const std::string& option) {
  return std::any_of(words.begin(), words.end(),
                     [&](const auto& word) { return word == option || word.starts_with(option + "="); });
}

std::vector<std::string> options_in(const std::string& path, const std::vector<std::string>& words) {
  YAML::Node root;
  try {
    root = YAML::LoadFile(path);
  } catch (const YAML::BadFile&) {
    throw wrong(path, "cannot be read");
  } catch (const YAML::Exception& e) {
    throw wrong(path, fmt::format("line {}: {}", e.mark.line + 1, e.msg));
  }
  if (!root.IsMap()) throw wrong(path, "is not a map of options");
  std::vector<std::string> options;
  for (const auto& entry : root) {
    std::string key = entry.first.as<std::string>();
    std::replace(key.begin(), key.end(), '_', '-');
    const std::string option = "--" + key;
    if (option == kOption) throw wrong(path, "names another file");
    if (is_given(words, option) || entry.second.IsNull()) continue;
    const std::string text = text_of(path, key, entry.second);
    if (text == "false" || text.empty()) continue;
    options.push_back(text == "true" ? option : fmt::format("{}={}", option, text));
  }
  return options;
}

}  // namespace

std::vector<std::string> with_config_file(const std::vector<std::string>& words) {
  std::vector<std::string> rest;
  std::optional<std::string> path;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const bool apart = words[i] == kOption;
    if (!apart && !words[i].starts_with(std::string(kOption) + "=")) {
      rest.push_back(words[i]);
      continue;
    }
    if (path) throw Error(ErrorKind::usage, "--config is given twice");
    if (apart && i + 1 == words.size()) throw Error(ErrorKind::usage, "--config needs a file");
    path = apart ? words[++i] : words[i].substr(std::string(kOption).size() + 1);
  }
  if (path) {
    for (auto& option : options_in(*path, rest)) rest.push_back(std::move(option));
  }
  return rest;
}

}  // namespace detent::cli
