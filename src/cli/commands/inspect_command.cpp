#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/bytes.h"
#include "cli/commands/commands.h"
#include "cli/options.h"
#include "cli/output/output.h"
#include "cli/output/transformer_words.h"
#include "detent/inspect.h"

namespace detent::cli {
namespace {

nlohmann::json to_json(const Inspection& r) {
  nlohmann::json out{{"ir_version", r.ir_version},
                     {"opsets", r.opsets},
                     {"op_types", r.op_types},
                     {"parameters", r.parameters},
                     {"parameter_bytes", r.parameter_bytes},
                     {"macs", or_null(r.macs)},
                     {"activation_bytes", or_null(r.activation_bytes)},
                     {"peak_activation_bytes", or_null(r.peak_activation_bytes)},
                     {"notes", r.notes}};
  const auto values = [](const std::vector<ValueReport>& all) {
    auto list = nlohmann::json::array();
    for (const auto& v : all) list.push_back({{"name", v.name}, {"type", v.type}, {"shape", v.shape}});
    return list;
  };
  out["inputs"] = values(r.inputs);
  out["outputs"] = values(r.outputs);
  if (r.heaviest) out["heaviest_layer"] = r.layers[*r.heaviest].name;
  if (r.peak_at) out["peak_at"] = r.layers[*r.peak_at].name;
  for (const auto& l : r.layers) {
    out["layers"].push_back({{"name", l.name},
                             {"op_type", l.op_type},
                             {"parameters", l.parameters},
                             {"parameter_bytes", l.parameter_bytes},
                             {"activation_bytes", or_null(l.activation_bytes)},
                             {"macs", or_null(l.macs)},
                             {"flops", or_null(l.flops)},
                             {"output_shape", l.output_shape},
                             {"finetune_bytes", or_null(l.finetune_bytes)}});
  }
  if (!r.products.empty()) out["runtime"] = r.runtime;
  if (r.transformer) out["transformer"] = transformer_json(*r.transformer);
  for (const auto& p : r.products)
    out["products"].push_back(
        {{"name", p.name}, {"op_type", p.op_type}, {"runs_as", p.runs_as}, {"in_float", p.in_float}});
  return out;
}

std::string count_or_unknown(const std::optional<std::uint64_t>& count) { return count ? format_count(*count) : "?"; }
std::string size_or_unknown(const std::optional<std::uint64_t>& bytes) { return bytes ? format_size(*bytes) : "?"; }

void print_layers(const Inspection& r, std::size_t limit) {
  std::vector<std::size_t> order(r.layers.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto weight = [&](std::size_t i) {
    return r.layers[i].parameter_bytes + r.layers[i].activation_bytes.value_or(0);
  };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return weight(a) > weight(b); });
  if (limit != 0 && order.size() > limit) order.resize(limit);
  print_text("\n{:>12} {:>10} {:>9} {:>12} {:>11}  {:<18} {:<20} {}\n", "parameters", "bytes", "MACs", "activations",
             "fine-tuning", "operator", "output", "layer (heaviest first)");
  for (const auto i : order) {
    const auto& l = r.layers[i];
    print_text("{:>12} {:>10} {:>9} {:>12} {:>11}  {:<18} {:<20} {}\n", l.parameters, format_size(l.parameter_bytes),
               count_or_unknown(l.macs), size_or_unknown(l.activation_bytes),
               l.finetune_bytes ? format_size(*l.finetune_bytes) : "-", l.op_type, l.output_shape, l.name);
  }
  if (order.size() < r.layers.size())
    print_text("… and {} more (--layers 0 lists all)\n", r.layers.size() - order.size());
}

// How many of each kind the runtime runs, and which of them in float.
void print_products(const Inspection& r) {
  if (r.products.empty()) return;
  constexpr std::size_t kNamed = 5;
  std::map<std::string, std::size_t> kinds;
  std::vector<std::string> in_float;
  for (const auto& p : r.products) {
    const auto type = p.runs_as.empty() ? std::string("part of another operator") : p.runs_as;
    ++kinds[p.in_float ? type + " in float" : type];
    if (p.in_float) in_float.push_back(fmt::format("{} {}", p.op_type, p.name));
  }
  std::vector<std::string> counts;
  for (const auto& [kind, count] : kinds) counts.push_back(fmt::format("{} {}", kind, count));
  print_text("quantized products as ONNX Runtime {} runs them: {}\n", r.runtime, fmt::join(counts, ", "));
  if (in_float.empty()) return;
  const auto more = in_float.size() - std::min(in_float.size(), kNamed);
  in_float.resize(std::min(in_float.size(), kNamed));
  print_text("dequantized and computed in float: {}{}\n", fmt::join(in_float, ", "),
             more > 0 ? fmt::format(" and {} more (--json lists all)", more) : "");
}

void print_report(const Inspection& r, std::size_t layers) {
  std::vector<std::string> opsets, types;
  for (const auto& [domain, version] : r.opsets)
    opsets.push_back(fmt::format("{} {}", domain.empty() ? "onnx" : domain, version));
  for (const auto& [type, count] : r.op_types) types.push_back(fmt::format("{} {}", type, count));
  print_text("IR version {}, opsets: {}\n", r.ir_version, fmt::join(opsets, ", "));
  for (const auto& v : r.inputs) print_text("input  {} {} {}\n", v.name, v.type, v.shape);
  for (const auto& v : r.outputs) print_text("output {} {} {}\n", v.name, v.type, v.shape);
  print_text("operators: {}\n", fmt::join(types, ", "));
  print_text("parameters: {} ({}); MACs: {}; activations: {} in all, {} alive at once{}\n", r.parameters,
             format_size(r.parameter_bytes), count_or_unknown(r.macs), size_or_unknown(r.activation_bytes),
             size_or_unknown(r.peak_activation_bytes), r.peak_at ? ", at " + r.layers[*r.peak_at].name : "");
  if (r.heaviest) print_text("heaviest layer: {} {}\n", r.layers[*r.heaviest].op_type, r.layers[*r.heaviest].name);
  if (r.transformer) print_transformer(*r.transformer);
  print_products(r);
  print_notes(r.notes);
  print_layers(r, layers);
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto* command =
      app.add_subcommand("inspect", "Operators, shapes, parameters and activation bytes of each layer; runs nothing");
  const auto declared = std::make_shared<DeclaredOptions>(*command, config::kInspect);
  command->footer("Example:\n  detent inspect model.onnx --shape image:1x3x224x224");
  command->callback([declared] {
    InspectOptions options;
    config::CommandLine line;
    declared->read(options, line);
    const auto report = inspect(options);
    if (line.json) {
      print_json(to_json(report));
    } else {
      print_report(report, line.layers);
    }
  });
}

}  // namespace detent::cli
