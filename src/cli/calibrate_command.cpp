#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "detent/calibrate.h"

namespace detent::cli {
namespace {

struct Arguments {
  CalibrateOptions options;
  std::vector<std::filesystem::path> merge;
  bool no_histogram = false;
  bool json = false;
};

nlohmann::json to_json(const std::filesystem::path& output, const CalibrateResult& r) {
  nlohmann::json out{{"output", output.string()},         {"samples", r.samples}, {"tensors", r.tensors},
                     {"output_bytes", r.output_bytes},    {"ranks", r.ranks},     {"notes", r.notes},
                     {"peak_memory_bytes", r.peak_memory}};
  for (const auto& s : r.stages)
    out["stages"].push_back({{"name", s.name}, {"seconds", s.seconds}, {"peak_memory_bytes", s.peak_memory}});
  return out;
}

void print_result(const Arguments& args, const CalibrateResult& r) {
  if (r.rank != 0) return;
  if (args.json) {
    fmt::print("{}\n", to_json(args.options.output, r).dump(2));
    return;
  }
  for (const auto& note : r.notes) fmt::print("note: {}\n", note);
  for (const auto& s : r.stages)
    fmt::print("{:<24} {:>7.2f} s   peak {:>9}\n", s.name, s.seconds, format_size(s.peak_memory));
  const std::string ranks = r.ranks > 1 ? fmt::format(" by {} ranks", r.ranks) : "";
  const std::string peak = r.peak_memory > 0 ? "; peak memory " + format_size(r.peak_memory) : "";
  fmt::print("{}: statistics of {} tensors over {} samples{}, {}{}\n", args.options.output.string(), r.tensors,
             r.samples, ranks, format_size(r.output_bytes), peak);
}

void check_arguments(const Arguments& args) {
  if (!args.merge.empty()) {
    const auto& o = args.options;
    if (o.report || o.trace || o.profile)
      throw Error(ErrorKind::usage, "--merge runs nothing that --profile, --report or --trace could show");
    if (o.model.empty() && o.calibration_data.empty()) return;
    throw Error(ErrorKind::usage, "--merge takes statistics files only, no model and no samples");
  }
  if (args.options.model.empty())
    throw Error(ErrorKind::usage, "MODEL is required", "or merge statistics: detent calibrate --merge A B -o FILE");
  if (args.options.calibration_data.empty()) throw Error(ErrorKind::usage, "--calibration-data is required");
}

void run(const Arguments& args, std::stop_token stop) {
  check_arguments(args);
  if (!args.merge.empty()) {
    print_result(args, merge_statistics(args.merge, args.options.output));
    return;
  }
  CalibrateOptions options = args.options;
  options.stop = std::move(stop);
  options.histograms = !args.no_histogram;
  ProgressLine progress;
  progress.set_memory_budget(options.resources.memory_budget.value_or(0));
  options.progress = [&](const std::string& stage, std::uint64_t done, std::uint64_t total) {
    progress.update(stage, done, total);
  };
  const auto result = calibrate(options);
  progress.finish();
  print_result(args, result);
}

}  // namespace

void add_calibrate(CLI::App& app, const std::stop_token& stop, const std::vector<std::string>& words) {
  auto* command = app.add_subcommand(
      "calibrate", "Write the statistics of a model's activations, for detent quantize --statistics with any method");
  auto args = std::make_shared<Arguments>();
  auto& options = args->options;
  options.command = words;
  command->add_option("MODEL", options.model, "float ONNX model")->option_text(" ");
  command->add_option("-o,--output", options.output, "statistics file to write")->required()->option_text("FILE");
  command
      ->add_option("--calibration-data", options.calibration_data,
                   "directory of .npy, .npz or test_data_set_*/input_N.pb, or one .npy or .npz file")
      ->option_text("PATH");
  command->add_option("--merge", args->merge, "add up these statistics files of one model; nothing is run")
      ->option_text("FILE…");
  add_sampling(*command, {options.max_samples, options.batch_size, options.allow_nonfinite});
  command
      ->add_flag("--no-histogram", args->no_histogram, "smallest and largest values only: enough for --method minmax")
      ->group("Calibration");
  command
      ->add_flag("--most-common", options.most_common,
                 "also find each sample's best power-of-two scale, for quantize --method mse --most-common")
      ->group("Calibration");
  add_preset(*command, options.config);
  add_selection(*command, options.config);
  add_running(*command, {options.threads, options.workers, options.runtime});
  add_resources(*command, options.resources);
  add_device(*command, options.device);
  add_profiling(*command, {options.profile, options.report, options.trace});
  command->add_flag("--json", args->json, "print the result as JSON")->group("Output");
  command->footer("Started by mpirun, each process takes a share of the samples; rank 0 writes.");
  command->callback([args, stop] { run(*args, stop); });
}

}  // namespace detent::cli
