#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "cli/commands/commands.h"
#include "cli/options.h"
#include "cli/output/output.h"
#include "cli/output/transformer_words.h"
#include "cli/pictures.h"
#include "detent/plan.h"

namespace detent::cli {
namespace {

nlohmann::json to_json(const Plan& p) {
  nlohmann::json out{{"samples", p.samples},
                     {"nodes_quantized", p.nodes_quantized},
                     {"nodes_in_float", p.nodes_in_float},
                     {"nodes_may_change", p.nodes_may_change},
                     {"nodes_with_gates", p.nodes_with_gates},
                     {"tensors_observed", p.tensors_observed},
                     {"macs", p.macs},
                     {"flops", p.flops},
                     {"observed_elements", p.observed_elements},
                     {"peak_memory_bytes", p.peak_memory},
                     {"work_dir_bytes", p.work_bytes},
                     {"output_bytes", p.output_bytes},
                     {"calibration_seconds", p.calibration_seconds},
                     {"measuring_seconds", p.measuring_seconds},
                     {"measuring_inferences", p.measuring_inferences},
                     {"notes", p.notes}};
  if (p.floats) out["floats"] = {{"nodes", p.floats->nodes}, {"nodes_kept", p.floats->nodes_kept}};
  if (p.transformer) out["transformer"] = transformer_json(*p.transformer);
  out["memory_budget_bytes"] = p.memory_budget;
  out["disk_budget_bytes"] = p.disk_budget;
  out["waiting_bytes"] = p.waiting_bytes;
  out["waiting_on_disk_bytes"] = p.waiting_on_disk;
  for (const auto& s : p.segments)
    out["segments"].push_back({{"first", s.first}, {"last", s.last}, {"nodes", s.nodes}});
  if (p.finetune.layers > 0) {
    out["finetune"] = {{"only_if_needed", p.finetune.only_if_needed},
                       {"layers", p.finetune.layers},
                       {"streamed", p.finetune.streamed},
                       {"heaviest", p.finetune.heaviest},
                       {"heaviest_bytes", p.finetune.heaviest_bytes},
                       {"seconds", p.finetune.seconds}};
  }
  if (p.device.devices > 0) {
    out["device"] = {{"devices", p.device.devices},
                     {"budget_bytes", p.device.budget},
                     {"calibration_counters_bytes", p.device.calibration_counters},
                     {"peak_bytes", p.device.peak()},
                     {"fits", p.device.fits()}};
    for (const auto& l : p.device.layers) {
      out["device"]["layers"].push_back({{"name", l.name},
                                         {"form", l.streamed ? "streamed" : "gram"},
                                         {"bytes", l.bytes},
                                         {"fits", l.bytes <= p.device.layer_budget()}});
    }
  }
  for (const auto& [name, shape] : p.inputs) out["inputs"].push_back({{"name", name}, {"shape", shape}});
  for (const auto& s : p.stages) out["stages"].push_back({{"what", s.what}, {"bytes", s.bytes}});
  for (const auto& member : p.family) {
    out["family"].push_back(to_json(member));
    out["family"].back()["name"] = member.name;
  }
  for (const auto& m : p.memory) out["memory"].push_back({{"what", m.what}, {"bytes", m.bytes}});
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
void print_family(const Plan& p) {
  for (const auto& m : p.family) {
    const auto what = m.floats
                          ? fmt::format("{} in 16-bit floats, {} in float32", m.floats->nodes, m.floats->nodes_kept)
                          : fmt::format("quantize {}, leave {} in float", m.nodes_quantized, m.nodes_in_float);
    const auto peak = m.peak_memory > 0 ? "peak memory " + format_size(m.peak_memory) + ", " : std::string();
    print_text("{:<6} {}; {}output {} (estimated)\n", m.name, what, peak, format_size(m.output_bytes));
    for (const auto& note : m.notes) print_note(fmt::format("{}: {}", m.name, note));
  }
  const auto over = p.samples > 0 ? " over " + count_with_noun(p.samples, "sample") : std::string();
  print_text("{}{}, output {} (estimated)\n", count_with_noun(p.family.size(), "model"), over,
             format_size(p.output_bytes));
}

void print_plan(const Plan& p) {
  for (const auto& [name, shape] : p.inputs) print_text("input {} {} (first sample)\n", name, shape);
  if (!p.family.empty()) return print_family(p);
  if (p.floats) {
    print_text("{} in 16-bit floats, {} in float32", count_with_noun(p.floats->nodes, "node"), p.floats->nodes_kept);
  } else {
    print_text("quantize {}, leave {} in float", count_with_noun(p.nodes_quantized, "node"), p.nodes_in_float);
  }
  if (p.tensors_observed > 0) print_text("; observe {}", count_with_noun(p.tensors_observed, "tensor"));
  if (p.samples > 0) print_text(" over {}", count_with_noun(p.samples, "sample"));
  print_text("\n");
  if (p.nodes_may_change && p.floats) print_text("  what values the samples have decides for more or fewer of them\n");
  if (p.nodes_may_change && !p.floats)
    print_text("  {}what is measured on the samples may leave more of them in float\n",
               p.nodes_with_gates > p.nodes_quantized
                   ? fmt::format("{} in integers if gates may be, too; ", count_with_noun(p.nodes_with_gates, "node"))
                   : "");
  if (p.peak_memory > 0) {
    print_text("one sample: {} MACs, {} operations, {} observed values\n", format_count(p.macs), format_count(p.flops),
               format_count(p.observed_elements));
    print_text("peak memory {:>12}  (budget {})\n", format_size(p.peak_memory), format_size(p.memory_budget));
    if (p.stages.size() > 1) {
      for (const auto& s : p.stages) {
        const char* only_if = "";
        if (s.what == "tuning weights" && p.finetune.only_if_needed) only_if = ", if they cause much of the error";
        if (s.what == "layers computed otherwise") only_if = ", if the written file is worse than was measured";
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
  print_text("working files {:>10}\noutput      {:>12} (estimated)\n", format_size(p.work_bytes),
             format_size(p.output_bytes));
  if (p.calibration_seconds > 0 && p.samples > 0)
    print_text("calibration {:>10.1f} s (estimated from this machine's measured peak)\n", p.calibration_seconds);
  if (p.measuring_seconds > 0 && p.samples > 0)
    print_text("sensitivity {:>10.1f} s (rough estimate: {:.0f} times plain inference of the samples)\n",
               p.measuring_seconds, p.measuring_inferences);
  if (p.transformer) print_transformer(*p.transformer);
  print_notes(p.notes);
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

void add_plan(CLI::App& app) {
  auto* command =
      app.add_subcommand("plan", "What quantize would do, with predicted memory, disk and time; runs nothing");
  const auto declared = std::make_shared<DeclaredOptions>(*command, config::kPlan);
  command->footer("Example:\n  detent plan model.onnx --calibration-data samples/ --memory-budget 2GiB");
  command->callback([declared] {
    QuantizeOptions options;
    config::CommandLine line;
    declared->read(options, line);
    const auto pictures = take_pictures(line, options.model, options);
    const double rate = network_rate(line.network);
    const auto result = plan(options);
    if (line.ranks > 0) require_known_times(result);
    if (line.json) {
      auto json = to_json(result);
      if (line.ranks > 0) json["ranks"] = ranks_json(result, line.ranks, rate);
      print_json(json);
      return;
    }
    print_plan(result);
    if (line.ranks > 0) print_ranks(result, line.ranks, rate);
  });
}

}  // namespace detent::cli
