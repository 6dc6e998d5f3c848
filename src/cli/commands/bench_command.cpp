#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/paths.h"
#include "base/unavailable.h"
#include "cli/commands/commands.h"
#include "cli/options.h"
#include "cli/output/latency_json.h"
#include "cli/output/output.h"
#include "cli/output/progress.h"
#include "cli/pictures.h"
#include "detent/bench.h"
#include "profile/meters.h"

namespace detent::cli {
namespace {

nlohmann::json to_json(const BenchedModel& m) {
  auto out = latency_json(m.latency);
  out.update({{"model", m.model.string()}, {"bytes", m.bytes}, {"load_seconds", m.load_seconds}});
  if (m.peak_memory) out["peak_memory_bytes"] = *m.peak_memory;
  for (const auto& o : m.operators)
    out["operators"].push_back(
        {{"op_type", o.op_type}, {"nodes", o.nodes}, {"seconds", o.seconds}, {"share", o.share}});
  return out;
}

nlohmann::json to_json(const BenchResult& r) {
  nlohmann::json out{{"threads", r.threads}, {"samples", r.samples}, {"synthetic", r.synthetic},
                     {"runtime", r.runtime}, {"notes", r.notes},     {"peak_memory_bytes", profile::peak_resident()}};
  for (const auto& model : r.models) out["models"].push_back(to_json(model));
  return out;
}

void print_models(const BenchResult& r) {
  print_text("{:>9} {:>9} {:>9} {:>9} {:>6} {:>12} {:>8} {:>10} {:>10}  {}\n", "min ms", "median ms", "p90 ms",
             "CPU ms", "ratio", "(quartiles)", "load s", "size", "memory", "model");
  for (const auto& m : r.models) {
    const auto& l = m.latency;
    print_text("{:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>6.2f} {:>12} {:>8.2f} {:>10} {:>10}  {}\n", kMilli * l.min,
               kMilli * l.median, kMilli * l.p90, kMilli * l.cpu, l.ratio,
               fmt::format("({:.2f}-{:.2f})", l.ratio_low, l.ratio_high), m.load_seconds, format_size(m.bytes),
               m.peak_memory ? format_size(*m.peak_memory) : "-", m.model.string());
  }
}

void print_operators(const BenchedModel& m) {
  print_text("\n{:>9} {:>7} {:>6}  operators of {}\n", "ms", "share", "nodes", m.model.string());
  for (const auto& o : m.operators)
    print_text("{:>9.3f} {:>5.1f} % {:>6}  {}\n", kMilli * o.seconds, 100 * o.share, o.nodes, o.op_type);
}

void print_result(const BenchResult& r) {
  print_models(r);
  const std::string inputs = r.synthetic ? "synthetic inputs" : count_with_noun(r.samples, "sample");
  print_text("{}, {} runs of each model in turns, on {}, ONNX Runtime {}\n",
             count_with_noun(static_cast<std::uint64_t>(r.threads), "thread"), r.models.front().latency.runs, inputs,
             r.runtime);
  print_notes(r.notes);
  for (const auto& model : r.models) {
    if (!model.operators.empty()) print_operators(model);
  }
}

}  // namespace

void add_bench(CLI::App& app, Signals& signals) {
  auto* command = app.add_subcommand(
      "bench", "Time models side by side in ONNX Runtime: latency, processor time, size, memory, time by operator");
  const auto declared = std::make_shared<DeclaredOptions>(*command, config::kBench);
  command->footer("Example:\n  detent bench model.onnx model.int8.onnx");
  command->callback([declared, &signals] {
    BenchOptions options;
    config::CommandLine line;
    declared->read(options, line);
    options.stop = signals.token();
    if (!paths::names_open_files()) throw unavailable("bench, which starts processes,");
    options.program = paths::target_of("/proc/self/exe");
    const auto pictures = take_pictures(line, options.models.front(), options);
    ProgressLine progress;
    options.progress = progress_to(progress, line.quiet);
    const auto result = bench(options);
    progress.finish();
    if (line.json) {
      print_json(to_json(result));
    } else {
      print_result(result);
    }
  });
}

}  // namespace detent::cli
