#include "cli/run_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/fingerprint.h"
#include "base/paths.h"
#include "base/printable.h"
#include "base/utf8.h"
#include "cli/config_file.h"
#include "config/value.h"
#include "onnx/model.h"
#include "run/files/model_fingerprint.h"
#include "run/files/model_folder.h"
#include "run/files/outputs.h"

namespace detent::cli {
namespace {

namespace fs = std::filesystem;

// What says how a run is told of, or where its options come from.
constexpr std::string_view kLeftOut[] = {"config",  "save-config",      "json", "quiet", "verbose", "summary", "resume",
                                         "isolate", "model-fingerprint"};

bool is_path(const config::Option& option) {
  const auto type = config::type_of(config::any_member(option), option.form);
  return type == "path" || type == "paths";
}

std::string whole(const fs::path& path) { return paths::absolute(path).lexically_normal().string(); }

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto point = first_code_point(text);
    if (!point.valid) return false;
    text.remove_prefix(point.length);
  }
  return true;
}

void write_value(YAML::Emitter& out, const nlohmann::json& value) {
  if (!value.is_array()) {
    out << YAML::DoubleQuoted << value.get<std::string>();
    return;
  }
  out << YAML::Flow << YAML::BeginSeq;
  for (const auto& item : value) out << YAML::DoubleQuoted << item.get<std::string>();
  out << YAML::EndSeq;
}

}  // namespace

std::string fingerprint_of(const fs::path& model) {
  return run::fingerprint_of(onnx::read_model(run::model_file(model))).text();
}

nlohmann::json run_options(const std::vector<GivenOption>& given) {
  auto all = nlohmann::json::object();
  for (const auto& entry : given) {
    const auto& option = *entry.option;
    if (std::find(std::begin(kLeftOut), std::end(kLeftOut), option.name) != std::end(kLeftOut)) continue;
    auto texts = entry.texts;
    for (auto& text : texts) {
      if (is_path(option) && text != "-") text = whole(text);
    }
    const bool is_plain = texts.size() == 1 && !config::is_list(config::any_member(option));
    all[key_of(option)] = is_plain ? nlohmann::json(texts.front()) : nlohmann::json(texts);
  }
  return all;
}

RunFile::RunFile(const fs::path& path, const std::vector<GivenOption>& given) : file_(path) {
  for (const auto& entry : given) {
    for (const auto& text : entry.texts) {
      // YAML holds Unicode alone, so that another name would be read from it.
      if (!is_utf8(text))
        throw usage_error(fmt::format("--save-config: '{}' of {} is not UTF-8", printable(text), entry.name),
                          "give it another name, or leave out --save-config");
    }
    if (entry.option->name == "calibration-data" && !entry.texts.empty())
      run::check_apart({path}, fs::path(entry.texts.front()));
    if (entry.option->name == "save-config" || !is_path(*entry.option)) continue;
    for (const auto& text : entry.texts) {
      if (whole(text) == whole(path))
        throw usage_error(fmt::format("--save-config: '{}' is the file of {} as well", path.string(), entry.name),
                          "give it another name");
    }
  }
}

void RunFile::commit(nlohmann::json options, const fs::path& model) {
  options["model-fingerprint"] = fingerprint_of(model);
  YAML::Emitter out;
  out << YAML::Comment("detent " DETENT_VERSION "; makes this run again: detent quantize --config THIS_FILE");
  out << YAML::Newline << YAML::BeginMap;
  for (const auto& [name, value] : options.items()) {
    out << YAML::Key << name << YAML::Value;
    write_value(out, value);
  }
  out << YAML::EndMap << YAML::Newline;
  file_.write(std::as_bytes(std::span(out.c_str(), out.size())));
  file_.commit();
}

void check_model(const fs::path& model, const std::string& fingerprint) {
  if (fingerprint_of(model) == fingerprint) return;
  throw bad_input(fmt::format("model '{}' is not the one that this run was made with", model.string()),
                  "give that model, or leave out model-fingerprint");
}

}  // namespace detent::cli
