#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/commands/commands.h"
#include "cli/options.h"
#include "cli/output/output.h"
#include "cli/output/progress.h"
#include "cli/pictures.h"
#include "detent/calibrate.h"

namespace detent::cli {
namespace {

nlohmann::json to_json(const std::filesystem::path& output, const CalibrateResult& r) {
  nlohmann::json out{{"output", output.string()},         {"samples", r.samples}, {"tensors", r.tensors},
                     {"output_bytes", r.output_bytes},    {"ranks", r.ranks},     {"notes", r.notes},
                     {"peak_memory_bytes", r.peak_memory}};
  for (const auto& s : r.stages)
    out["stages"].push_back({{"name", s.name}, {"seconds", s.seconds}, {"peak_memory_bytes", s.peak_memory}});
  return out;
}

void print_result(const std::filesystem::path& output, const config::CommandLine& line, const CalibrateResult& r) {
  if (r.rank != 0) return;
  if (line.json) {
    print_json(to_json(output, r));
    return;
  }
  if (line.quiet) return;
  print_notes(r.notes);
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
  if (!o.model.empty() || !o.calibration_data.empty())
    throw Error(ErrorKind::usage, "--merge takes statistics files only, no model and no samples");
}

void check_files(const CalibrateOptions& o) {
  if (o.model.empty())
    throw Error(ErrorKind::usage, "MODEL is required", "or merge statistics: detent calibrate --merge A B -o FILE");
  if (o.calibration_data.empty() && o.samples == nullptr)
    throw Error(ErrorKind::usage, "--calibration-data is required");
  if (o.output == "-") throw Error(ErrorKind::usage, "-o -: statistics go to a file", "give a file name");
}

void run(CalibrateOptions options, const config::CommandLine& line) {
  if (!line.merge.empty()) {
    check_merge(options);
    print_result(options.output, line, merge_statistics(line.merge, options.output));
    return;
  }
  const auto pictures = take_pictures(line, options.model, options);
  check_files(options);
  ProgressLine progress;
  progress.set_memory_budget(options.resources.memory_budget.value_or(0));
  options.progress = progress_to(progress, line.quiet);
  const auto result = calibrate(options);
  progress.finish();
  print_result(options.output, line, result);
}

}  // namespace

void add_calibrate(CLI::App& app, Signals& signals, const std::vector<std::string>& words) {
  auto* command = app.add_subcommand(
      "calibrate", "Write the statistics of a model's activations, for detent quantize --statistics with any method");
  const auto declared = std::make_shared<DeclaredOptions>(*command, config::kCalibrate);
  command->footer(
      "Example:\n  detent calibrate model.onnx -o model.stats --calibration-data samples/\n\n"
      "Started by mpirun, each process takes a share of the samples; rank 0 writes.");
  command->callback([declared, &signals, words] {
    CalibrateOptions options;
    config::CommandLine line;
    options.command = words;
    declared->read(options, line);
    options.stop = signals.token();
    run(std::move(options), line);
  });
}

}  // namespace detent::cli
