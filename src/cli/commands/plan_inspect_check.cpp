#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "checking/diagnosis.h"
#include "cli/commands/commands.h"
#include "cli/options.h"
#include "cli/output/output.h"
#include "cli/output/result_json.h"
#include "config/results.h"
#include "detent/check.h"
#include "detent/inspect.h"
#include "detent/plan.h"

namespace detent::cli {
namespace {

// Of the whole run: what is known of its parts, the proof, which runs both models over samples, and opening sessions.
double seconds_of(const Plan& p) {
  constexpr double kSessions = 1;
  if (p.calibration_seconds <= 0) return 0;
  const double tuning = p.finetune.only_if_needed ? 0 : p.finetune.seconds;
  return kSessions + 2 * p.calibration_seconds + p.measuring_seconds + tuning;
}

nlohmann::json to_json(const Plan& p) {
  auto out = config::result_json(p);
  out["seconds"] = seconds_of(p);
  config::keep_lists(out, {"notes"});
  if (p.floats) {
    out["floats"].erase("casts");
    out["floats"].erase("constants");
  }
  if (p.transformer) out["transformer"] = transformer_json(*p.transformer);
  if (p.finetune.layers == 0) out.erase("finetune");
  if (p.device.devices == 0) {
    out.erase("device");
  } else {
    out["device"].update({{"peak_bytes", p.device.peak()}, {"fits", p.device.fits()}});
    for (std::size_t i = 0; i < p.device.layers.size(); ++i) {
      const auto& layer = p.device.layers[i];
      auto& told = out["device"]["layers"][i];
      told.erase("streamed");
      told.update({{"form", layer.streamed ? "streamed" : "gram"}, {"fits", layer.bytes <= p.device.layer_budget()}});
    }
  }
  for (const auto& [name, shape] : p.inputs) out["inputs"].push_back({{"name", name}, {"shape", shape}});
  for (const auto& member : p.family) {
    out["family"].push_back(to_json(member));
    out["family"].back()["name"] = member.name;
  }
  return out;
}

void print_segments(const Plan& p) {
  if (p.segments.size() < 2) return;
  print_text("{} segments; at most {} spooled between them, {} of it on disk\n", p.segments.size(),
             format_size(p.waiting_bytes), format_size(p.waiting_on_disk));
  for (const auto& s : p.segments) print_text("  {:>5} nodes  {} … {}\n", s.nodes, s.first, s.last);
}

void print_device(const PlannedDevice& d) {
  if (d.devices == 0) return;
  print_text("{} {}: ", d.devices == 1 ? "device memory" : "memory of each device", format_size(d.peak()));
  print_text("{} the budget of {}\n", d.fits() ? "fits" : "does not fit", format_size(d.budget));
  if (d.calibration_counters > 0)
    print_text("  {:>22}  calibration counters, besides the runtime's own memory\n",
               format_size(d.calibration_counters));
  for (const auto& l : d.layers) {
    print_text("  {:>22}  {}{}{}\n", format_size(l.bytes), l.name, l.streamed ? " (mini-batches)" : "",
               l.bytes <= d.layer_budget() ? "" : ": does not fit");
  }
}

// A line for each member.
void print_family(const Plan& p, bool verbose) {
  for (const auto& m : p.family) {
    const auto what = m.floats
                          ? fmt::format("{} in 16-bit floats, {} in float32", m.floats->nodes, m.floats->nodes_kept)
                          : fmt::format("quantize {}, leave {} in float", m.nodes_quantized, m.nodes_in_float);
    const auto peak = m.peak_memory > 0 ? "peak memory " + format_size(m.peak_memory) + ", " : std::string();
    print_text("{:<6} {}; {}output {} (estimated)\n", m.name, what, peak, format_size(m.output_bytes));
    print_notes(m.notes, verbose, m.name);
  }
  const auto over = p.samples > 0 ? " over " + count_with_noun(p.samples, "sample") : std::string();
  print_text("{}{}, output {} (estimated)\n", count_with_noun(p.family.size(), "model"), over,
             format_size(p.output_bytes));
}

void print_plan(const Plan& p, bool verbose) {
  for (const auto& [name, shape] : p.inputs) print_text("input {} {} (first sample)\n", name, shape);
  if (!p.family.empty()) return print_family(p, verbose);
  if (p.floats) {
    print_text("{} in 16-bit floats, {} in float32", count_with_noun(p.floats->nodes, "node"), p.floats->nodes_kept);
  } else {
    print_text("quantize {}, leave {} in float", count_with_noun(p.nodes_quantized, "node"), p.nodes_in_float);
  }
  if (p.tensors_observed > 0) print_text("; observe {}", count_with_noun(p.tensors_observed, "tensor"));
  if (p.samples > 0) print_text(" over {}", count_with_noun(p.samples, "sample"));
  print_text("\n");
  if (p.nodes_may_change) print_text("  what the run measures on the samples may change these counts\n");
  if (p.peak_memory > 0) {
    print_text("one sample: {} MACs, {} operations, {} observed values\n", format_count(p.macs), format_count(p.flops),
               format_count(p.observed_elements));
    print_text("peak memory {:>12}  (budget {})\n", format_size(p.peak_memory), format_size(p.memory_budget));
    if (p.stages.size() > 1) {
      for (const auto& s : p.stages) {
        const char* only_if = "";
        if (s.what == "tuning weights" && p.finetune.only_if_needed) only_if = ", if they cause much of the error";
        if (s.what == "layers computed differently") only_if = ", if the written file is worse than was measured";
        print_text("  {:>22}  {}{}\n", format_size(s.bytes), s.what, only_if);
      }
      print_text("of calibration\n");
    }
    for (const auto& m : p.memory) print_text("  {:>22}  {}\n", format_size(m.bytes), m.what);
  }
  print_segments(p);
  if (p.finetune.layers > 0) {
    print_text(
        "{}fine-tune {}, {} of them streamed, in about {:.0f} s plus two runs of the model for each sample; the "
        "heaviest, '{}', takes {}\n",
        p.finetune.only_if_needed ? "if weights cause much of the error, " : "",
        count_with_noun(p.finetune.layers, "layer"), p.finetune.streamed, p.finetune.seconds, p.finetune.heaviest,
        format_size(p.finetune.heaviest_bytes));
  }
  print_device(p.device);
  const bool may_tune = p.finetune.only_if_needed && p.finetune.layers > 0;
  print_text("working files {:>10}{}\noutput      {:>12} (estimated)\n", format_size(p.work_bytes),
             may_tune ? ", most of them if weights are tuned" : "", format_size(p.output_bytes));
  if (p.calibration_seconds > 0 && p.samples > 0)
    print_text("calibration {:>10.1f} s (estimated from this machine's measured peak)\n", p.calibration_seconds);
  if (p.measuring_seconds > 0 && p.samples > 0)
    print_text("sensitivity {:>10.1f} s (rough estimate: {:.0f} times plain inference of the samples)\n",
               p.measuring_seconds, p.measuring_inferences);
  if (const double seconds = seconds_of(p); seconds > 0)
    print_text("in all      {:>10.1f} s (rough estimate)\n", seconds);
  if (p.transformer) print_transformer(*p.transformer);
  print_notes(p.notes, verbose);
}

// "25Gbit" in bits per second.
double network_rate(const std::string& text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"Kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}, {"Tbit", 1e12}};
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  const auto found = std::find_if(std::begin(kUnits), std::end(kUnits), [&](const auto& u) { return u.first == unit; });
  if (code != std::errc() || !(value > 0) || !std::isfinite(value) || found == std::end(kUnits))
    throw usage_error(fmt::format("--network '{}' is no rate", text), "give bits per second, as in 800Mbit or 25Gbit");
  return value * found->second;
}

struct RanksTime {
  std::size_t ranks = 1;
  double seconds = 0, efficiency = 1;
  std::vector<double> stages;  // in the order of Plan::shares
};

std::vector<RanksTime> times_of_ranks(const Plan& p, std::size_t asked, double rate) {
  std::vector<RanksTime> times;
  for (const std::size_t ranks : std::set<std::size_t>{1, 2, 8, 64, 512, asked}) {
    auto& time = times.emplace_back(RanksTime{ranks, 0, 1, {}});
    for (const auto& share : p.shares) time.stages.push_back(share.seconds(ranks, rate));
    time.seconds = std::accumulate(time.stages.begin(), time.stages.end(), 0.0);
    if (time.seconds > 0) time.efficiency = times.front().seconds / time.seconds / static_cast<double>(ranks);
  }
  return times;
}

void require_known_times(const Plan& p) {
  if (!p.shares.empty()) return;
  throw usage_error("--ranks: the times of this run are not known",
                    "give --calibration-data and a format of integers, whose times are predicted, or leave it out");
}

nlohmann::json ranks_json(const Plan& p, std::size_t asked, double rate) {
  nlohmann::json out;
  for (const auto& time : times_of_ranks(p, asked, rate)) {
    nlohmann::json stages;
    for (std::size_t i = 0; i < p.shares.size(); ++i)
      stages.push_back({{"what", p.shares[i].what},
                        {"seconds", time.stages[i]},
                        {"received_bytes", p.shares[i].received_bytes(time.ranks)}});
    out.push_back(
        {{"ranks", time.ranks}, {"seconds", time.seconds}, {"efficiency", time.efficiency}, {"stages", stages}});
  }
  return out;
}

void print_ranks(const Plan& p, std::size_t asked, double rate) {
  print_text("ranks under mpirun, each with {} of memory at the peak and such a machine of its own:\n",
             format_size(p.peak_memory));
  for (const auto& time : times_of_ranks(p, asked, rate)) {
    print_text("  {:>5} {:>10.1f} s  efficiency {:>3.0f} %:", time.ranks, time.seconds, 100 * time.efficiency);
    for (std::size_t i = 0; i < p.shares.size(); ++i)
      print_text("{} {} {:.1f} s", i > 0 ? "," : "", p.shares[i].what, time.stages[i]);
    print_text("\n");
  }
}

}  // namespace

const Subcommand plan_command{
    config::kPlan, "Show what quantize would do, with predicted memory, disk and time; runs nothing",
    "Example:\n  detent plan model.onnx --calibration-data samples/ --memory-budget 2GiB", [](Call& call) {
      auto& [options, line, given] = call;
      const auto pictures = take_pictures(line, options.model, options);
      const double rate = network_rate(line.network);
      const auto result = plan(options);
      if (line.ranks > 0) require_known_times(result);
      if (print_members(line, result)) return;
      if (line.json) {
        auto json = to_json(result);
        if (line.ranks > 0) json["ranks"] = ranks_json(result, line.ranks, rate);
        print_json(json);
        return;
      }
      print_plan(result, line.verbose);
      if (line.ranks > 0) print_ranks(result, line.ranks, rate);
    }};

namespace {

nlohmann::json to_json(const Inspection& r) {
  auto out = config::result_json(r);
  for (const auto* name : {"opsets", "op_types"}) out.emplace(name, nlohmann::json::object());
  config::keep_lists(out, {"inputs", "outputs", "notes"});
  if (r.heaviest) out["heaviest_layer"] = r.layers[*r.heaviest].name;
  if (r.peak_at) out["peak_at"] = r.layers[*r.peak_at].name;
  if (!r.products.empty()) out["runtime"] = r.runtime;
  if (r.transformer) out["transformer"] = transformer_json(*r.transformer);
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
  print_text("quantized layers as ONNX Runtime {} runs them: {}\n", r.runtime, fmt::join(counts, ", "));
  if (in_float.empty()) return;
  const auto more = in_float.size() - std::min(in_float.size(), kNamed);
  in_float.resize(std::min(in_float.size(), kNamed));
  print_text("dequantized and computed in float: {}{}\n", fmt::join(in_float, ", "),
             more > 0 ? fmt::format(" and {} more (--json lists all)", more) : "");
}

void print_inspection(const Inspection& r, std::size_t layers) {
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

const Subcommand inspect_command{config::kInspect,
                                 "List operators, shapes, parameters and activation bytes of each layer; runs nothing",
                                 "Example:\n  detent inspect model.onnx --shape image:1x3x224x224", [](Call& call) {
                                   auto& [options, line, given] = call;
                                   const auto report = inspect(options);
                                   if (print_members(line, report)) return;
                                   if (line.json) {
                                     print_json(to_json(report));
                                   } else {
                                     print_inspection(report, line.layers);
                                   }
                                 }};

namespace {

std::string_view word(Verdict verdict) {
  return config::word_of(config::enum_names<Verdict>(), static_cast<int>(verdict));
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

void print_check(const CheckOptions& options, const CheckResult& r) {
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

const Subcommand check_command{config::kCheck,
                               "Show what a target makes of each node: accepted, falls back or refused; runs nothing",
                               "Example:\n  detent check model.int8.onnx --target openvino", [](Call& call) {
                                 auto& [options, line, given] = call;
                                 const auto result = check(options);
                                 if (print_members(line, result)) return;
                                 if (line.json) {
                                   auto json = config::result_json(result);
                                   config::keep_lists(json, {"nodes", "problems"});
                                   print_json(json);
                                 } else {
                                   print_check(options, result);
                                 }
                               }};

}  // namespace detent::cli
