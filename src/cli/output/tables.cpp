#include "cli/output/tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "base/text.h"
#include "cli/output/result_json.h"
#include "detent/latency.h"
#include "profile/report.h"
#include "run/comparison/latency.h"
#include "run/comparison/outcome.h"
#include "searching/front.h"

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

// The value at a JSON pointer, or null.
const json& value_at(const json& result, const char* pointer) {
  static const json kNone;
  const json::json_pointer where(pointer);
  return result.contains(where) ? result.at(where) : kNone;
}

std::string answer_of(const json& result) {
  const auto& text = value_at(result, "/outcome/answer");
  if (text == "yes") return "ready to use";
  if (text == "look") return "look first";
  return text == "no" ? "not close enough" : "";
}

double number_at(const json& result, const char* pointer, double otherwise) {
  const auto& value = value_at(result, pointer);
  return value.is_number() ? value.get<double>() : otherwise;
}

// Measured on a machine that was not busy.
bool has_latency(const json& result) {
  if (!value_at(result, "/latency/after/median_seconds").is_number()) return false;
  Latency latency;
  latency.waiting = std::max(number_at(result, "/latency/before/waiting_share", 0),
                             number_at(result, "/latency/after/waiting_share", 0));
  return !latency.is_doubtful();
}

// A text, or the texts of a list with spaces between them.
std::string text_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string all;
  for (const auto& item : value.is_array() ? value : json::array()) {
    if (item.is_string()) all += (all.empty() ? "" : " ") + item.get<std::string>();
  }
  return all;
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

std::string name_of(const json& result) {
  const auto& output = value_at(result, "/output");
  return output.is_string() ? std::filesystem::path(output.get<std::string>()).filename().string() : "?";
}

}  // namespace

std::string options_of(const json& result) {
  std::string all;
  const auto& config = value_at(result, "/config");
  if (!config.is_object()) return all;
  for (const auto& [name, value] : config.items()) {
    if (!holds(kSources, name) && !holds(kFiles, name)) add(all, name + " " + text_of(value));
  }
  return all.empty() ? "defaults" : all;
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

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Of an item in a numbered list.
bool is_number(std::string_view text, std::size_t until) {
  return until > 0 && std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(until),
                                  [](unsigned char c) { return std::isdigit(c) != 0; });
}

// Whether Markdown, also as GitHub writes it, could take the character for more than itself: tags, entities, links,
// pictures, addresses that become links by themselves, code, formulas, emphasis, ends of cells, lists.
bool has_meaning(std::string_view text, std::size_t at) {
  const char c = text[at], before = at == 0 ? ' ' : text[at - 1], after = at + 1 == text.size() ? ' ' : text[at + 1];
  switch (c) {
    case '_': return !is_word(before) || !is_word(after);
    case '&': return is_word(after) || after == '#';
    case ':': return after == '/';
    case '.':
      return text.substr(0, at).ends_with("www") || text.substr(0, at).ends_with("WWW") ||
             (after == ' ' && is_number(text, at));
    case ')': return after == ' ' && is_number(text, at);
    case '-':
    case '+':
    case '=':
    case '>': return at == 0;
    default: return std::string_view("\\`*[]<|~#$@").find(c) != std::string_view::npos;
  }
}

// Names come from models.
std::string cell(const std::string& name) {
  const auto text = printable(name);
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (has_meaning(text, i)) out += '\\';
    out += text[i];
  }
  return out;
}

const json::array_t& list_at(const json& from, const char* pointer) {
  static const json::array_t kNone;
  const auto& value = value_at(from, pointer);
  return value.is_array() ? value.get_ref<const json::array_t&>() : kNone;
}

std::string decibels(const json& value) {
  return value.is_number() ? fmt::format("{:.1f} dB", value.get<double>()) : "";
}

std::string sqnr(const json& r) {
  const auto& value = value_at(r, "/accuracy/sqnr_db");
  if (!value.is_number()) return "";
  return fmt::format("{}, error {:.1f} % of the signal", decibels(value), 100 * run::error_of(value.get<double>()));
}

std::string samples(const json& r) {
  const auto& value = value_at(r, "/accuracy/samples");
  return value.is_number_unsigned() ? fmt::format("{}", value.get<std::uint64_t>()) : "";
}

std::string share(const json& value) {
  return value.is_number() ? fmt::format("{:.1f} %", 100 * value.get<double>()) : "";
}

std::string latency(const json& r) {
  const auto &before = value_at(r, "/latency/before/median_seconds"),
             &after = value_at(r, "/latency/after/median_seconds");
  const auto &ratio = value_at(r, "/latency/after/ratio"), &threads = value_at(r, "/latency/threads");
  if (!before.is_number() || !after.is_number() || !ratio.is_number() || !threads.is_number_integer()) return "";
  if (!has_latency(r)) return "not measured: the machine was busy";
  return fmt::format("{:.4g} → {:.4g} ms ({}, {} thread{})", 1e3 * before.get<double>(), 1e3 * after.get<double>(),
                     run::speed_words(ratio.get<double>()), threads.get<std::uint64_t>(), threads == 1 ? "" : "s");
}

std::string size(const json& r) {
  const auto &before = value_at(r, "/model_bytes_before"), &after = value_at(r, "/model_bytes_after");
  if (!before.is_number_unsigned() || !after.is_number_unsigned()) return "";
  return fmt::format("{} → {}", format_size(before.get<std::uint64_t>()), format_size(after.get<std::uint64_t>()));
}

std::string nodes(const json& r) {
  const auto &integers = value_at(r, "/nodes_quantized"), &floats = value_at(r, "/nodes_in_float");
  if (!integers.is_number_unsigned() || !floats.is_number_unsigned()) return "";
  return fmt::format("{} in integers, {} in float", integers.get<std::uint64_t>(), floats.get<std::uint64_t>());
}

std::string memory(const json& r) {
  const auto& peak = value_at(r, "/peak_memory_bytes");
  return peak.is_number_unsigned() ? format_size(peak.get<std::uint64_t>()) : "";
}

struct Row {
  const char* name;
  std::function<std::string(const json&)> text;
};

std::string table(std::span<const json> results) {
  const std::vector<Row> rows{
      {"outcome", answer_of},
      {"worst output, SQNR", sqnr},
      {"score, of the float model's", [](const json& r) { return share(value_at(r, "/accuracy/score")); }},
      {"samples measured", samples},
      {"latency", latency},
      {"size", size},
      {"nodes", nodes},
      {"multiplications in integers", [](const json& r) { return share(value_at(r, "/accuracy/integer_macs")); }},
      {"peak memory of the run", memory},
      {"made", [](const json& r) { return text_of(value_at(r, "/made")); }},
      {"options", options_of},
      {"model and samples", sources_of},
  };
  std::string out = "| |", rule = "|---|";
  for (const auto& r : results) {
    out += fmt::format(" {} |", cell(name_of(r)));
    rule += "---|";
  }
  out += "\n" + rule + "\n";
  for (const auto& row : rows) {
    std::string line = fmt::format("| {} |", row.name);
    bool has_any = false;
    for (const auto& r : results) {
      const auto text = row.text(r);
      has_any = has_any || !text.empty();
      line += fmt::format(" {} |", cell(text));
    }
    if (has_any) out += line + "\n";
  }
  return out;
}

std::string rotation(const json& r) {
  const auto &kept = value_at(r, "/rotated/kept"), &before = value_at(r, "/rotated/error_before"),
             &after = value_at(r, "/rotated/error_after");
  if (!kept.is_boolean() || !before.is_number() || !after.is_number()) return "";
  return rotation_words(kept.get<bool>(), before.get<double>(), after.get<double>());
}

std::string comments(const json& r) {
  constexpr std::size_t kMost = 10;
  std::string out;
  const auto& headline = value_at(r, "/outcome/headline");
  if (headline.is_string()) out += fmt::format("\n**{}**: {}\n", cell(name_of(r)), cell(headline.get<std::string>()));
  std::vector<std::string> lines;
  for (const auto& reason : list_at(r, "/outcome/reasons")) {
    if (reason.is_string()) lines.push_back(cell(reason.get<std::string>()));
  }
  if (auto text = rotation(r); !text.empty()) lines.push_back(cell(text));
  const auto& kept = list_at(r, "/kept");
  for (std::size_t i = 0; i < std::min(kept.size(), kMost); ++i) {
    const auto &node = value_at(kept[i], "/node"), &why = value_at(kept[i], "/why");
    if (node.is_string() && why.is_string())
      lines.push_back(fmt::format("{}: {}", cell(node.get<std::string>()), cell(why.get<std::string>())));
  }
  if (kept.size() > kMost) lines.push_back(fmt::format("and {} more", kept.size() - kMost));
  for (const auto& line : lines) out += fmt::format("{}- {}\n", &line == &lines.front() ? "\n" : "", line);
  return out;
}

// Of an SQNR that equal results do not have.
double error_of(const json& db) { return db.is_number() ? std::pow(10.0, -db.get<double>() / 10) : 0; }

json point_of(const json& result) {
  json point{{"name", name_of(result)}, {"single", false}, {"chosen", json::array()}, {"on_front", true}};
  point["bytes"] = number_at(result, "/model_bytes_after", 0);
  const auto& accuracy = value_at(result, "/accuracy");
  if (accuracy.contains("sqnr_db")) {
    point["sqnr_db"] = accuracy["sqnr_db"];
    point["error"] = error_of(accuracy["sqnr_db"]);
  }
  if (has_latency(result)) point["seconds"] = value_at(result, "/latency/after/median_seconds");
  point["outcome"] = answer_of(result);
  point["headline"] = value_at(result, "/outcome/headline");
  point["made"] = value_at(result, "/made");
  point["options"] = options_of(result);
  point["sources"] = sources_of(result);
  return point;
}

// The float model, as the first result that has a latency measured it.
json float_point(const json& result) {
  return {{"name", "fp32"},
          {"single", true},
          {"chosen", json::array()},
          {"on_front", true},
          {"bytes", number_at(result, "/model_bytes_before", 0)},
          {"sqnr_db", nullptr},
          {"error", 0},
          {"seconds", value_at(result, "/latency/before/median_seconds")}};
}

std::string model_of(const json& result) {
  const auto& model = value_at(result, "/config/model");
  return model.is_string() ? std::filesystem::path(model.get<std::string>()).filename().string() : "detent report";
}

bool is_better(const json& one, const json& other) {
  bool better = false;
  for (const char* what : {"seconds", "bytes", "error"}) {
    const double a = number_at(one, (std::string("/") + what).c_str(), INFINITY);
    const double b = number_at(other, (std::string("/") + what).c_str(), INFINITY);
    if (a > b) return false;
    better = better || a < b;
  }
  return better;
}

}  // namespace

std::string markdown_table(std::span<const json> results) {
  std::string out = table(results);
  for (const auto& r : results) out += comments(r);
  return out;
}

std::string comparison_page(std::span<const json> results) {
  std::vector<json> points;
  std::set<std::string> models;
  for (const auto& result : results) {
    points.push_back(point_of(result));
    const auto& print = value_at(result, "/config/model-fingerprint");
    models.insert(print.is_string() ? print.get<std::string>() : sources_of(result));
  }
  const auto timed = std::find_if(results.begin(), results.end(), has_latency);
  if (timed != results.end() && models.size() == 1) points.push_back(float_point(*timed));
  for (auto& point : points) {
    point["on_front"] =
        std::none_of(points.begin(), points.end(), [&](const json& other) { return is_better(other, point); });
  }
  const json page{{"kind", "results"},
                  {"model", models.size() == 1 ? model_of(results.front()) : "detent report"},
                  {"points", points}};
  return searching::page(profile::script_safe(json_text(page)));
}

}  // namespace detent::cli
