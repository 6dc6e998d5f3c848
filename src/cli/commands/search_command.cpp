#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/json.h"
#include "base/small_file.h"
#include "cli/commands/commands.h"
#include "cli/options.h"
#include "cli/output/latency_json.h"
#include "cli/output/output.h"
#include "cli/output/progress.h"
#include "cli/pictures.h"
#include "detent/search.h"
#include "run/command.h"

namespace detent::cli {
namespace {

std::string decibels(const SearchPoint& point) {
  return std::isinf(point.sqnr_db) && point.sqnr_db > 0 ? "exact" : fmt::format("{:.1f} dB", point.sqnr_db);
}

void print_machines(const SearchResult& r, const SearchOptions& options) {
  if (r.machines.empty()) return;
  print_text("{:>9} {:>12} {:>10} {:>10}  {:<14} {}\n", "ms", "requests/s", "memory", "price/h", "model", "machine");
  double price = 0;
  std::vector<std::string> fleet;
  for (const auto& m : r.machines) {
    print_text("{:>9.4g} {:>12.4g} {:>10} {:>10.4g}  {:<14} {}\n", kMilli * m.seconds, m.requests,
               m.peak_memory == 0 ? "-" : format_size(m.peak_memory), m.price, m.model, m.machine);
    if (m.needed == 0) continue;
    price += static_cast<double>(m.needed) * m.price;
    fleet.push_back(fmt::format("{} x {} with {}", m.needed, m.machine, m.model));
  }
  print_text("{:g} requests a second for the least: {}, {:.4g} an hour\n", *options.requests, fmt::join(fleet, ", "),
             price);
}

void print_result(const SearchResult& r, const SearchOptions& options) {
  auto points = r.points;
  std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  print_text("{:>9} {:>10} {:>9}  {:<6} {:<14} {}\n", "ms", "size", "SQNR", "front", "model", "chosen as");
  for (const auto& p : points)
    print_text("{:>9.4g} {:>10} {:>9}  {:<6} {:<14} {}\n", kMilli * p.seconds, format_size(p.bytes), decibels(p),
               p.on_front ? "yes" : "", p.name, fmt::join(p.chosen, ", "));
  print_text("{} of products and formats, {} measured, {}\n", count_with_noun(r.candidates, "candidate"),
             count_with_noun(points.size(), "model"), count_with_noun(r.samples, "sample"));
  if (r.out_of_time) print_note("time was up: models that were wanted are missing");
  print_notes(r.notes);
  print_machines(r, options);
  for (const auto& p : points) {
    if (p.written) print_text("{}: {}\n  {}\n", fmt::join(p.chosen, ", "), p.written->string(), p.command);
  }
  print_text("picture: {}\n", (options.output / "front.html").string());
}

// The pictures, as quantize takes them.
std::string samples_given(const std::vector<GivenOption>& given) {
  std::vector<std::string> words;
  for (const auto& entry : given) {
    if (entry.option->name.starts_with("image")) words.push_back(run::quoted(as_word(entry)));
  }
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace

void add_search(CLI::App& app, Signals& signals) {
  auto* command = app.add_subcommand(
      "search",
      "Find the smallest, fastest and most accurate of all formats and their mixtures, and a picture of them");
  const auto declared = std::make_shared<DeclaredOptions>(*command, config::kSearch);
  command->footer(
      "Example:\n  detent search model.onnx -o out --calibration-data samples/ --max-latency 8ms\n\n"
      "Started by mpirun, each process takes a share of the work; rank 0 times and writes.");
  command->callback([declared, &signals] {
    SearchOptions options;
    config::CommandLine line;
    options.samples_given = samples_given(declared->read(options, line));
    options.stop = signals.token();
    const auto pictures = take_pictures(line, options.model, options);
    ProgressLine progress;
    options.progress = progress_to(progress, line.quiet);
    const auto result = search(options);
    progress.finish();
    if (result.rank != 0) return;
    if (line.json) {
      write_out(read_small_file((options.output / "front.json").string(), "the front"));
    } else {
      print_result(result, options);
    }
  });
}

}  // namespace detent::cli
