#include "cli/output/markdown.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/bytes.h"
#include "base/printable.h"
#include "cli/output/error_words.h"
#include "cli/output/result_fields.h"
#include "run/comparison/latency.h"
#include "run/comparison/outcome.h"

namespace detent::cli {
namespace {

using nlohmann::json;

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

}  // namespace

std::string markdown_table(std::span<const json> results) {
  std::string out = table(results);
  for (const auto& r : results) out += comments(r);
  return out;
}

}  // namespace detent::cli
