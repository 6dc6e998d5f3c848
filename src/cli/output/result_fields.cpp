#include "cli/output/result_fields.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "detent/latency.h"

namespace detent::cli {
namespace {

using nlohmann::json;

// Options that say what a run reads and writes, not how.
constexpr std::string_view kSources[] = {"model", "calibration-data", "images", "calibration-text", "statistics"};
constexpr std::string_view kFiles[] = {"output", "model-fingerprint", "report", "profile", "trace", "runtime"};

template <class Names>
bool holds(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

void add(std::string& all, const std::string& text) {
  if (!all.empty()) all += ", ";
  all += text;
}

}  // namespace

std::string text_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string all;
  for (const auto& item : value.is_array() ? value : json::array()) {
    if (item.is_string()) all += (all.empty() ? "" : " ") + item.get<std::string>();
  }
  return all;
}

const json& value_at(const json& result, const char* pointer) {
  static const json kNone;
  const json::json_pointer where(pointer);
  return result.contains(where) ? result.at(where) : kNone;
}

double number_at(const json& result, const char* pointer, double otherwise) {
  const auto& value = value_at(result, pointer);
  return value.is_number() ? value.get<double>() : otherwise;
}

std::string name_of(const json& result) {
  const auto& output = value_at(result, "/output");
  return output.is_string() ? std::filesystem::path(output.get<std::string>()).filename().string() : "?";
}

std::string answer_of(const json& result) {
  const auto& text = value_at(result, "/outcome/answer");
  if (text == "yes") return "ready to use";
  if (text == "look") return "look first";
  return text == "no" ? "not close enough" : "";
}

bool has_latency(const json& result) {
  if (!value_at(result, "/latency/after/median_seconds").is_number()) return false;
  Latency latency;
  latency.waiting = std::max(number_at(result, "/latency/before/waiting_share", 0),
                             number_at(result, "/latency/after/waiting_share", 0));
  return !latency.is_doubtful();
}

std::string options_of(const json& result) {
  std::string all;
  const auto& config = value_at(result, "/config");
  if (!config.is_object()) return all;
  for (const auto& [name, value] : config.items()) {
    if (!holds(kSources, name) && !holds(kFiles, name)) add(all, name + " " + text_of(value));
  }
  return all.empty() ? "defaults" : all;
}

std::string sources_of(const json& result) {
  std::string all;
  for (const auto name : kSources) {
    const auto text = text_of(value_at(result, ("/config/" + std::string(name)).c_str()));
    if (!text.empty()) add(all, std::filesystem::path(text).filename().string());
  }
  const auto print = text_of(value_at(result, "/config/model-fingerprint"));
  if (!print.empty()) add(all, "fingerprint " + print);
  return all;
}

std::vector<json> single_results(std::vector<json> results) {
  std::vector<json> all;
  for (auto& result : results) {
    const auto& family = value_at(result, "/family");
    if (!family.is_array()) {
      all.push_back(std::move(result));
      continue;
    }
    for (auto member : family) {
      if (!member.is_object()) continue;
      for (const char* common : {"made", "detent", "config"}) {
        if (result.contains(common)) member[common] = result[common];
      }
      all.push_back(std::move(member));
    }
  }
  return all;
}

}  // namespace detent::cli
