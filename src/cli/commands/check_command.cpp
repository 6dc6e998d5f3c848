#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "checking/headline.h"
#include "cli/commands/commands.h"
#include "cli/options.h"
#include "cli/output/output.h"
#include "detent/check.h"

namespace detent::cli {
namespace {

std::string_view word(Verdict verdict) {
  return config::word_of(config::enum_names<Verdict>(), static_cast<int>(verdict));
}

nlohmann::json to_json(const CheckResult& r) {
  auto nodes = nlohmann::json::array();
  for (const auto& n : r.nodes)
    nodes.push_back({{"name", n.name},
                     {"op_type", n.op_type},
                     {"verdict", word(n.verdict)},
                     {"on_cpu", n.on_cpu},
                     {"precision", n.precision},
                     {"rule", n.rule},
                     {"suggestion", n.suggestion},
                     {"macs", or_null(n.macs)}});
  return {{"target", r.target},         {"target_reason", r.target_reason},
          {"nodes", std::move(nodes)},  {"accepted", r.accepted},
          {"falls_back", r.falls_back}, {"refused", r.refused},
          {"macs", or_null(r.macs)},    {"integer_macs", or_null(r.integer_macs)},
          {"partitions", r.partitions}, {"problems", r.problems}};
}

// Nodes that are judged alike, in one line.
void print_exceptions(const CheckResult& r) {
  struct Group {
    const CheckedNode* first;
    std::size_t count = 0;
  };
  std::map<std::string, std::size_t> places;
  std::vector<Group> groups;
  for (const auto& n : r.nodes) {
    if (n.verdict == Verdict::accepted) continue;
    const auto [place, added] =
        places.try_emplace(fmt::format("{}|{}|{}", word(n.verdict), n.rule, n.suggestion), groups.size());
    if (added) groups.push_back({&n});
    ++groups[place->second].count;
  }
  for (const auto& [first, count] : groups) {
    print_text("{:<10} {}{}{}: {}{}\n", word(first->verdict), first->name,
               count > 1 ? fmt::format(" and {} more", count - 1) : "",
               first->precision.empty() ? "" : fmt::format(" ({})", first->precision), first->rule,
               first->suggestion.empty() ? "" : fmt::format("; instead: {}", first->suggestion));
  }
}

// Whether what was printed names forms of integers.
bool has_forms(const CheckResult& r) {
  const auto names_form = [](const std::string& text) {
    return text.find(" -> ") != std::string::npos || text.find("put u") != std::string::npos ||
           text.find("put s") != std::string::npos;
  };
  return std::any_of(r.nodes.begin(), r.nodes.end(), [&](const auto& n) {
    return n.verdict != Verdict::accepted && (names_form(n.rule) || names_form(n.suggestion));
  });
}

void print_report(const CheckOptions& options, const CheckResult& r) {
  if (!r.target_reason.empty()) print_note(r.target_reason);
  for (const auto& problem : r.problems) print_text("problem: {}\n", problem);
  print_exceptions(r);
  if (has_forms(r))
    print_text(
        "forms: u8, s16: integers of 8 bits, of 16 with a sign; =: the zero point is in the middle; /t, /c, /b: a "
        "constant with one scale, one for each channel, one for each block; f32: floats; |: or\n");
  print_text("{} on {}\n", options.model.string(), checking::headline(r));
}

}  // namespace

void add_check(CLI::App& app) {
  auto* command =
      app.add_subcommand("check", "What a target makes of each node: accepted, falls back or refused; runs nothing");
  const auto declared = std::make_shared<DeclaredOptions>(*command, config::kCheck);
  command->footer("Example:\n  detent check model.int8.onnx --target openvino");
  command->callback([declared] {
    CheckOptions options;
    config::CommandLine line;
    declared->read(options, line);
    const auto result = check(options);
    if (line.json) {
      print_json(to_json(result));
    } else {
      print_report(options, result);
    }
  });
}

}  // namespace detent::cli
