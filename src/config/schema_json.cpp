#include "config/schema_json.h"

#include <nlohmann/json.hpp>

#include "config/conflicts.h"
#include "config/option.h"
#include "config/presets.h"
#include "config/value.h"

namespace detent::config {
namespace {

using nlohmann::json;

json names_of(unsigned some) {
  json names = json::array();
  for (const auto& [command, name] : commands()) {
    if ((some & command) != 0) names.push_back(name);
  }
  return names;
}

const char* word(Affects affects) {
  switch (affects) {
    case Affects::undeclared: return "undeclared";
    case Affects::nothing: return "nothing";
    case Affects::statistics: return "statistics";
    case Affects::integers: return "integers";
  }
  return "";
}

}  // namespace

json schema_json() {
  json rows = json::array();
  for (const auto& option : options()) {
    const Member member = any_member(option);
    rows.push_back({{"name", option.name},
                    {"path", option.at.path},
                    {"commands", names_of(option.commands)},
                    {"required", names_of(option.required)},
                    {"of_library", option.at.command_line == nullptr},
                    {"affects", word(option.affects)},
                    {"group", option.group},
                    {"help", option.help},
                    {"full_help", full_help(option)},
                    {"default", default_of(option)},
                    {"value", json_of(member)},
                    {"type", type_of(member, option.form)},
                    {"words", words_of(option)},
                    {"label", option.label},
                    {"only", option.only},
                    {"off", option.off},
                    {"off_help", option.off_help},
                    {"letter", option.letter},
                    {"usual", names_of(option.usual)},
                    {"detail", option.detail}});
  }
  json presets = json::array();
  for (const auto& p : config::presets()) presets.push_back({{"name", p.name}, {"help", p.help}});
  json conflicts = json::array();
  for (const auto& row : config::conflicts()) conflicts.push_back({{"why", row.why}, {"hint", row.hint}});
  return {{"options", std::move(rows)}, {"presets", std::move(presets)}, {"conflicts", std::move(conflicts)}};
}

}  // namespace detent::config
