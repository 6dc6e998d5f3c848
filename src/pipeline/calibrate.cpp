// Calibration alone: from a model and samples to a statistics file.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/parallel.h"
#include "base/paths.h"
#include "calibration/statistics_file.h"
#include "config/validate.h"
#include "data/sample.h"
#include "detent/calibrate.h"
#include "onnx/model.h"
#include "profile/profiler.h"
#include "quantization/placement/placement.h"
#include "run/collect.h"
#include "run/context.h"
#include "run/files/model_folder.h"
#include "run/files/outputs.h"
#include "run/files/run_directory.h"
#include "run/model/finish.h"
#include "run/model/prepare.h"
#include "run/model/target_runtime.h"
#include "run/records/run_report.h"
#include "run/samples/samples.h"
#include "run/sweep_setup.h"
#include "shim/cuda_driver.h"
#include "shim/ranks.h"

namespace detent {
namespace {

using profile::Step;

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
                            .calibration_data = options.calibration_data,
                            .options = config::identity(options, config::Affects::statistics, config::kCalibrate),
                            .histograms = options.histograms,
                            .votes = options.method.most_common,
                            .rank = ranks.rank(),
                            .ranks = ranks.size()});
}

void append(std::vector<std::string>& all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

// One run of calibrate(): the stages in their order, and what one hands to the next.
class Calibration {
 public:
  explicit Calibration(const CalibrateOptions& options)
      : options_(options),
        ranks_(shim::Ranks::join()),
        reports_(ranks_.rank() == 0 && (options.report || options.trace)),
        run_profiler_(options.profiler, profile_of(options, ranks_)),
        profiler_(run_profiler_.profiler()) {
    result_.rank = ranks_.rank();
    result_.ranks = ranks_.size();
  }

  CalibrateResult run() {
    run::check_same_among(ranks_, options_, config::kCalibrate);
    if (ranks_.size() == 1) return run_stages();
    try {
      return run_stages();
    } catch (const Error& e) {
      throw Error(e.kind(), fmt::format("rank {}: {}", ranks_.rank(), e.what()), e.hint());
    }
  }

 private:
  CalibrateResult run_stages() {
    prepare();
    collect();
    if (ranks_.rank() == 0) write();
    work_->finish();
    run_profiler_.finish();
    if (reports_) write_reports();
    result_.stages = run_profiler_.stage_reports();
    result_.peak_memory = profiler_.peak_memory();
    return std::move(result_);
  }

  void prepare() {
    const auto scope = profiler_.scope(Step::pre_process);
    auto original = onnx::read_model(run::model_file(options_.model));
    profiler_.checkpoint(Step::model_loaded);
    run::check_output(options_.output, original);
    fingerprint_.emplace(original);
    runtime_.emplace(options_.runtime, options_.resources.sample_time_limit);
    if (auto own = run::with_kept_floats(original, options_, *runtime_)) options_ = std::move(*own);
    work_.emplace(options_.resources, run_identity(options_, original, ranks_));
    append(result_.notes, work_->notes());
    profiler_.watch_directory(work_->path());
    prepared_ = run::prepare(std::move(original), options_.config, *runtime_, work_->scratch(), profiler_,
                             {options_.resources.memory_budget, options_.stop}, {.skipped = options_.skip_passes});
    append(result_.notes, options_.notes);
    append(result_.notes, prepared_.notes);
    placement_ = run::place_qdq_pairs(prepared_, options_.config);
    append(result_.notes, placement_.notes);
    source_ = run::open_samples(options_, run::input_specs(prepared_.model), static_cast<std::size_t>(ranks_.rank()),
                                static_cast<std::size_t>(ranks_.size()));
    if (!reports_) return;
    run::describe_layers(prepared_, placement_, *runtime_, *source_,
                         {placement_.to_observe().size(), options_.histograms, thread_count(options_.threads),
                          static_cast<std::size_t>(options_.workers), 0},
                         report_);
    report_.recording.directory = work_->scratch();
  }

  void collect() {
    const auto scope = profiler_.scope(Step::calibration);
    report_.collect_start = profiler_.now();
    run::CollectOptions collecting{.histograms = options_.histograms,
                                   .votes = options_.method.most_common,
                                   .allow_nonfinite = options_.allow_nonfinite,
                                   .workers = options_.workers,
                                   .weights_at_hand = [this](const auto& names) { fingerprint_->take(names); },
                                   .recording = reports_ ? &report_.recording : nullptr};
    run::DeviceCalibration device(options_.device, placement_.to_observe().size(), options_.histograms,
                                  work_->scratch(), reports_ ? &profiler_.device() : nullptr);
    device.lend(collecting);
    auto [statistics, notes] = run::collect_within(
        {*runtime_, options_.resources, work_->path(), options_.threads, options_.progress, options_.stop}, *work_,
        prepared_, placement_, *source_, collecting);
    for (const auto& more : {source_->notes(), notes, device.notes()}) append(result_.notes, more);
    if (device.use() != nullptr) report_.device = run::RunReport::Device{options_.device, *device.use(), {}};
    report_.samples_run = statistics.samples;
    statistics.model = fingerprint_->finish();
    statistics.model_name = options_.model.filename().string();
    run::gather_statistics(ranks_, statistics, options_.stop);
    statistics_ = std::move(statistics);
    result_.samples = statistics_.samples;
    result_.tensors = statistics_.tensors.size();
  }

  void write() {
    const auto scope = profiler_.scope(Step::post_process);
    if (options_.stop.stop_requested()) throw interrupted();
    calibration::write_statistics(statistics_, options_.output);
    result_.output_bytes = paths::size_of(options_.output);
  }

  void write_reports() {
    report_.statistics = std::move(statistics_);
    run::ReportRequest request{options_, result_.notes, work_->scratch()};
    if (result_.ranks > 1) {
      request.notes.push_back(
          fmt::format("time, memory and layers are those of rank 0 of {}; the statistics are of all", result_.ranks));
    }
    run::write_reports(report_, request, run_profiler_);
  }

  CalibrateOptions options_;
  shim::Ranks ranks_;
  const bool reports_;
  run::RunProfiler run_profiler_;
  profile::Profiler& profiler_;
  CalibrateResult result_;
  run::RunReport report_;

  std::optional<run::ModelFingerprint> fingerprint_;
  std::optional<run::RunDirectory> work_;
  std::optional<exec::Runtime> runtime_;
  run::Prepared prepared_;
  quantization::Placement placement_;
  std::unique_ptr<data::SampleSource> source_;
  calibration::Statistics statistics_;
};

}  // namespace

CalibrateResult calibrate(const CalibrateOptions& options) {
  if (auto named = run::with_named_target(options)) return calibrate(*named);
  config::validate(options, config::kCalibrate);
  run::check_apart(written_files(options), options.calibration_data);
  run::check_report_paths(options.report, options.trace);
  shim::require_cuda(options.device.cuda);
  return run::within_time(
      options, [](const Options& limited) { return Calibration(limited).run(); },
      run::hint_to_resume(options.resources));
}

/// Several statistics files into one.
CalibrateResult merge_statistics(const std::vector<std::filesystem::path>& inputs,
                                 const std::filesystem::path& output) {
  run::check_place(output);
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
  result.output_bytes = paths::size_of(output);
  return result;
}

}  // namespace detent
