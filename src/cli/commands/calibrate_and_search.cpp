#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "cli/commands/commands.h"
#include "cli/options.h"
#include "cli/output/output.h"
#include "cli/output/progress.h"
#include "cli/output/result_json.h"
#include "config/presets.h"
#include "config/results.h"
#include "detent/calibrate.h"
#include "detent/search.h"
#include "run/command.h"

namespace detent::cli {
namespace {

void print_calibration(const std::filesystem::path& output, const config::CommandLine& line, const CalibrateResult& r) {
  if (r.rank != 0 || print_members(line, r)) return;
  if (line.json) {
    auto json = config::result_json(r);
    config::keep_lists(json, {"notes"});
    json["output"] = output.string();
    print_json(json);
    return;
  }
  if (line.quiet) return;
  print_notes(r.notes, line.verbose);
  for (const auto& s : line.verbose ? r.stages : std::vector<StageReport>())
    print_text("{:<24} {:>7.2f} s   peak {:>9}\n", s.name, s.seconds, format_size(s.peak_memory));
  const std::string ranks = r.ranks > 1 ? fmt::format(" by {} ranks", r.ranks) : "";
  const std::string peak = r.peak_memory > 0 ? "; peak memory " + format_size(r.peak_memory) : "";
  print_text("{}: statistics of {} over {}{}, {}{}\n", output.string(), count_with_noun(r.tensors, "tensor"),
             count_with_noun(r.samples, "sample"), ranks, format_size(r.output_bytes), peak);
}

void check_merge(const CalibrateOptions& o) {
  if (o.report || o.trace || o.profile)
    throw Error(ErrorKind::usage, "--merge runs nothing that --profile, --report or --set trace could show");
  if (!o.model.empty() || o.calibration_data)
    throw Error(ErrorKind::usage, "--merge takes statistics files only, no model and no samples");
}

void check_files(const CalibrateOptions& o) {
  if (o.model.empty())
    throw Error(ErrorKind::usage, "MODEL is required", "or merge statistics: detent calibrate --merge A B -o FILE");
  if (!config::has_samples(o)) throw Error(ErrorKind::usage, "--calibration-data is required");
  if (o.output == "-") throw Error(ErrorKind::usage, "-o -: statistics go to a file", "give a file name");
}

void run(Options& options, const config::CommandLine& line) {
  if (!line.merge.empty()) {
    check_merge(options);
    print_calibration(options.output, line, merge_statistics(line.merge, options.output));
    return;
  }
  const auto pictures = take_pictures(line, options.model, options);
  check_files(options);
  ProgressLine progress;
  progress.set_memory_budget(options.resources.memory_budget.value_or(0));
  options.progress = progress_to(progress, line.quiet);
  const auto result = calibrate(options);
  progress.finish();
  print_calibration(options.output, line, result);
}

}  // namespace

const Subcommand calibrate_command{
    config::kCalibrate,
    "Write the statistics of a model's activations, for detent quantize --statistics with any method",
    "Example:\n  detent calibrate model.onnx -o model.stats --calibration-data samples/\n\n"
    "Started by mpirun, each process takes a share of the samples; rank 0 writes.",
    [](Call& call) { run(call.options, call.line); }};

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
  print_text("{:g} requests a second at the lowest price: {}, {:.4g} an hour\n", *options.requests,
             fmt::join(fleet, ", "), price);
}

void print_search(const SearchResult& r, const SearchOptions& options) {
  auto points = r.points;
  std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  print_text("{:>9} {:>10} {:>9}  {:<6} {:<14} {}\n", "ms", "size", "SQNR", "front", "model", "chosen as");
  for (const auto& p : points)
    print_text("{:>9.4g} {:>10} {:>9}  {:<6} {:<14} {}\n", kMilli * p.seconds, format_size(p.bytes), decibels(p),
               p.on_front ? "yes" : "", p.name, fmt::join(p.chosen, ", "));
  print_text("{} of layers and formats, {} measured, {}\n", count_with_noun(r.candidates, "candidate"),
             count_with_noun(points.size(), "model"), count_with_noun(r.samples, "sample"));
  if (r.out_of_time) print_note("time was up: some of the models are missing");
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

const Subcommand search_command{
    config::kSearch, "Find the smallest, fastest and most accurate model among all formats and their mixtures",
    "Example:\n  detent search model.onnx -o out --calibration-data samples/ --max-latency 8ms\n\n"
    "Started by mpirun, each process takes a share of the work; rank 0 times and writes.",
    [](Call& call) {
      auto& [options, line, given] = call;
      options.samples_given = samples_given(given);
      const auto pictures = take_pictures(line, options.model, options);
      const auto result = with_progress(options, line.quiet, search);
      if (result.rank != 0 || print_members(line, result)) return;
      if (line.json) {
        write_out(read_small_file((options.output / "front.json").string(), "the front"));
      } else {
        print_search(result, options);
      }
    }};

}  // namespace detent::cli
