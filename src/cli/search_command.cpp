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
#include "cli/commands.h"
#include "cli/latency_json.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/pictures.h"
#include "cli/progress.h"
#include "detent/search.h"

namespace detent::cli {
namespace {

std::string decibels(const SearchPoint& point) {
  return std::isinf(point.sqnr_db) ? "exact" : fmt::format("{:.1f} dB", point.sqnr_db);
}

void print_result(const SearchResult& r, const SearchOptions& options) {
  auto points = r.points;
  std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  print_text("{:>9} {:>10} {:>9}  {:<6} {:<14} {}\n", "ms", "size", "SQNR", "front", "model", "chosen as");
  for (const auto& p : points)
    print_text("{:>9.4g} {:>10} {:>9}  {:<6} {:<14} {}\n", kMilli * p.seconds, format_size(p.bytes), decibels(p),
               p.on_front ? "yes" : "", p.name, fmt::join(p.chosen, ", "));
  print_text("{} of products and formats, {} measured, {}\n", counted(r.candidates, "candidate"),
             counted(points.size(), "model"), counted(r.samples, "sample"));
  if (r.out_of_time) print_text("time was up: models that were wanted are missing\n");
  for (const auto& note : r.notes) print_text("note: {}\n", note);
  for (const auto& p : points) {
    if (p.written) print_text("{}: {}\n  {}\n", fmt::join(p.chosen, ", "), p.written->string(), p.command);
  }
  print_text("picture: {}\n", (options.output / "front.html").string());
}

}  // namespace

void add_search(CLI::App& app, Signals& signals) {
  auto* command = app.add_subcommand(
      "search",
      "Find the smallest, fastest and most accurate of all formats and their mixtures, and a picture of them");
  const auto declared = std::make_shared<Declared>(*command, config::kSearch);
  command->footer("Example:\n  detent search model.onnx -o found --calibration-data samples/ --max-latency 8ms");
  command->callback([declared, &signals] {
    SearchOptions options;
    config::CommandLine line;
    declared->read(options, line);
    options.stop = signals.token();
    const auto pictures = take_pictures(line, options.model, options);
    ProgressLine progress;
    options.progress = progress_to(progress, line.quiet);
    const auto result = search(options);
    progress.finish();
    if (line.json) {
      print_text("{}", read_small_file((options.output / "front.json").string(), "the front"));
    } else {
      print_result(result, options);
    }
  });
}

}  // namespace detent::cli
