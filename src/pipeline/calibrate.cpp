// The story of calibration alone: from a model and samples to a statistics file.
#include "detent/calibrate.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/parallel.h"
#include "calibrate/statistics_file.h"
#include "data/sample.h"
#include "onnx/model.h"
#include "profile/profiler.h"
#include "quantize/placement.h"
#include "run/calibration_device.h"
#include "run/model_fingerprint.h"
#include "run/outputs.h"
#include "run/prepare.h"
#include "run/run_directory.h"
#include "run/run_profiler.h"
#include "run/run_report.h"
#include "run/samples.h"
#include "run/sweep_setup.h"
#include "shim/cuda_driver.h"
#include "shim/ranks.h"

namespace detent {
namespace {

using profile::Step;

void check_options(const CalibrateOptions& options) {
  if (options.threads < 0) throw usage_error("--threads must not be negative");
  if (options.workers < 1) throw usage_error("--workers must be at least 1");
  if (options.batch_size < 0) throw usage_error("--batch-size must not be negative");
  if (options.most_common && !options.histograms)
    throw usage_error("--most-common needs histograms", "leave out --no-histogram");
  run::check_calibration_device(options.device, options.workers);
}

// Rank 0 ends with the statistics of all ranks.
void reduce(shim::Ranks& ranks, calibration::Statistics& statistics, const std::stop_token& stop) {
  if (ranks.size() == 1) return;
  const std::string mine = ranks.rank() == 0 ? std::string() : calibration::encode(statistics);
  ranks.gather(
      std::as_bytes(std::span(mine)),
      [&](int rank, std::span<const std::byte> bytes) {
        const auto theirs = calibration::decode(bytes, fmt::format("what rank {} sent", rank));
        if (theirs.model != statistics.model)
          throw bad_input(fmt::format("rank {} calibrated another model file", rank), "give all ranks the same files");
        statistics.merge(theirs);
      },
      stop);
}

std::optional<std::filesystem::path> data_path(const CalibrateOptions& options) {
  if (options.calibration_data.empty()) return std::nullopt;
  return options.calibration_data;
}

std::vector<std::filesystem::path> written_files(const CalibrateOptions& options) {
  std::vector<std::filesystem::path> files{options.output};
  for (const auto& path : {options.profile, options.report, options.trace}) {
    if (path) files.push_back(*path);
  }
  return files;
}

// Each rank measures itself.
std::optional<std::filesystem::path> profile_of(const CalibrateOptions& options, const shim::Ranks& ranks) {
  if (!options.profile || ranks.rank() == 0) return options.profile;
  return std::filesystem::path(fmt::format("{}.rank{}", options.profile->string(), ranks.rank()));
}

nlohmann::json run_identity(const CalibrateOptions& options, const onnx::Model& model, const shim::Ranks& ranks) {
  return run::run_identity({.model = model,
                            .output = options.output,
                            .calibration_data = data_path(options),
                            .config = options.config,
                            .histograms = options.histograms,
                            .votes = options.most_common,
                            .allow_nonfinite = options.allow_nonfinite,
                            .max_samples = options.max_samples,
                            .batch_size = options.batch_size,
                            .threads = options.threads,
                            .spool_bfloat16 = options.resources.spool_bfloat16,
                            .device = options.device,
                            .rank = ranks.rank(),
                            .ranks = ranks.size()});
}

run::ReportRequest report_request(const CalibrateOptions& options, const CalibrateResult& result,
                                  const run::RunDirectory& work) {
  run::ReportRequest request{options.report, options.trace, options.model,   options.command,
                             result.notes,   nullptr,       options.threads, work.scratch()};
  if (result.ranks > 1) {
    request.notes.push_back(
        fmt::format("time, memory and layers are those of rank 0 of {}; the statistics are of all", result.ranks));
  }
  return request;
}

}  // namespace

CalibrateResult calibrate(const CalibrateOptions& options) {
  check_options(options);
  run::check_apart(written_files(options), data_path(options));
  run::check_report_paths(options.report, options.trace);
  shim::require_cuda(options.device.cuda);
  auto ranks = shim::Ranks::join();
  CalibrateResult result;
  result.rank = ranks.rank();
  result.ranks = ranks.size();
  run::RunProfiler run_profiler(options.profiler, profile_of(options, ranks));
  profile::Profiler& profiler = run_profiler.profiler();
  const bool reports = ranks.rank() == 0 && (options.report || options.trace);
  run::RunReport report;
  auto pre_process = std::make_optional(profiler.scope(Step::pre_process));
  auto original = onnx::read_model(options.model);
  profiler.checkpoint(Step::model_loaded);
  run::check_output(options.output, original);
  run::ModelFingerprint identity(original);
  run::RunDirectory work(options.resources, run_identity(options, original, ranks));
  profiler.watch_directory(work.path());
  const exec::Runtime runtime(options.runtime);
  const auto prepared =
      run::prepare(std::move(original), quantization::needed_opset(options.config), runtime, work.scratch(), profiler);
  const auto placement = run::place(prepared, options.config);
  const auto source =
      run::open_samples(options.calibration_data, options.samples, run::input_specs(prepared.model),
                        {options.max_samples, options.batch_size, static_cast<std::size_t>(ranks.rank()),
                         static_cast<std::size_t>(ranks.size())});
  if (reports) {
    run::describe_layers(prepared, placement, runtime, *source,
                         {placement.to_observe().size(), options.histograms, thread_count(options.threads),
                          static_cast<std::size_t>(options.workers), 0},
                         report);
    report.recording.directory = work.scratch();
  }
  pre_process.reset();
  calibration::Statistics statistics;
  std::vector<std::string> sweep_notes;
  {
    const auto scope = profiler.scope(Step::calibration);
    report.collect_start = profiler.now();
    run::CollectOptions collect{.histograms = options.histograms,
                                .votes = options.most_common,
                                .allow_nonfinite = options.allow_nonfinite,
                                .threads = options.threads,
                                .workers = options.workers,
                                .weights_at_hand = [&](const auto& names) { identity.take(names); },
                                .progress = options.progress,
                                .stop = options.stop,
                                .recording = reports ? &report.recording : nullptr};
    run::DeviceCalibration device(options.device, placement.to_observe().size(), options.histograms, work.scratch(),
                                  reports ? &profiler.device() : nullptr);
    device.lend(collect);
    statistics =
        run::collect_within(options.resources, work, prepared, placement, runtime, *source, collect, sweep_notes);
    for (auto& note : device.notes()) sweep_notes.push_back(std::move(note));
    if (device.use() != nullptr) report.device = run::RunReport::Device{options.device, *device.use(), {}};
    report.samples_run = statistics.samples;
    statistics.model = identity.finish();
    statistics.model_name = options.model.filename().string();
    reduce(ranks, statistics, options.stop);
  }
  result.samples = statistics.samples;
  result.tensors = statistics.tensors.size();
  result.notes = work.notes();
  for (const auto& notes : {prepared.notes, placement.notes, source->notes(), sweep_notes})
    result.notes.insert(result.notes.end(), notes.begin(), notes.end());
  if (ranks.rank() == 0) {
    const auto scope = profiler.scope(Step::post_process);
    if (options.stop.stop_requested()) throw interrupted();
    calibration::write_statistics(statistics, options.output);
    result.output_bytes = std::filesystem::file_size(options.output);
  }
  work.finish();
  run_profiler.finish();
  if (reports) {
    report.statistics = std::move(statistics);
    run::write_reports(report, report_request(options, result, work), run_profiler);
  }
  result.stages = run_profiler.stage_reports();
  result.peak_memory = profiler.peak_memory();
  return result;
}

CalibrateResult merge_statistics(const std::vector<std::filesystem::path>& inputs,
                                 const std::filesystem::path& output) {
  if (inputs.empty()) throw usage_error("there is nothing to merge", "name statistics files after --merge");
  const auto is_output = [&](const auto& input) {
    std::error_code ignored;
    return std::filesystem::equivalent(input, output, ignored);
  };
  if (std::any_of(inputs.begin(), inputs.end(), is_output)) {
    throw usage_error(fmt::format("output '{}' would overwrite one of the files to merge", output.string()),
                      "choose another --output");
  }
  auto all = calibration::read_statistics(inputs.front());
  std::vector<Fingerprint> seen{all.data};
  for (std::size_t i = 1; i < inputs.size(); ++i) {
    const auto more = calibration::read_statistics(inputs[i]);
    const std::string where = fmt::format("statistics '{}'", inputs[i].string());
    calibration::check_mergeable(all, more, where);
    if (std::find(seen.begin(), seen.end(), more.data) != seen.end())
      throw bad_input(where + " was made from the same samples as another of the files", "give each file once");
    seen.push_back(more.data);
    all.merge(more);
  }
  calibration::write_statistics(all, output);
  CalibrateResult result;
  result.samples = all.samples;
  result.tensors = all.tensors.size();
  result.output_bytes = std::filesystem::file_size(output);
  return result;
}

}  // namespace detent
