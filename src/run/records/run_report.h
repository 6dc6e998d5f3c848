// Measurements of a run of quantize or calibrate, for the report and the trace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "calibration/statistics.h"
#include "detent/compare.h"
#include "detent/profile.h"
#include "detent/quantize.h"
#include "detent/stage_report.h"
#include "onnx/model.h"
#include "planning/memory.h"
#include "profile/machine.h"
#include "profile/profiler.h"
#include "quantization/assignment.h"
#include "quantization/placement/placement.h"
#include "run/collect.h"
#include "run/model/prepare.h"

namespace detent::run {

/// Where the stages of a run are recorded: in a profile of its own, or in one that the caller holds.
class RunProfiler {
 public:
  /// Throws usage when both are given: the caller's profile has its own file.
  RunProfiler(Profiler* callers, const std::optional<std::filesystem::path>& yaml);

  profile::Profiler& profiler() noexcept { return *profiler_; }
  const profile::Profiler& profiler() const noexcept { return *profiler_; }

  /// Ends the run's own profile, and throws when its file could not be written. A caller's profile continues.
  void finish();

  /// Of this run only, also in a caller's profile.
  std::vector<profile::StageTime> stages() const;
  std::vector<StageReport> stage_reports() const;

 private:
  std::optional<profile::Profiler> own_;
  profile::Profiler* profiler_;
  std::size_t first_;  // stage of this run
};

/// A node of the float model.
struct LayerRecord {
  std::string name;
  std::string op_type;
  std::string input;   // first input
  std::string output;  // first output: what links it to times and errors
  graph::Work work;    // of one run
  double seconds = 0;  // of one run; 0 when the runtime fused the node into another
};

/// The stage in which both models run for the report.
inline constexpr const char* kComparisonStage = "Comparison";
inline constexpr const char* kSensitivityStage = "Sensitivity";
inline constexpr const char* kLatencyStage = "Latency";

struct RunReport {
  std::vector<LayerRecord> layers;
  std::map<std::string, std::string> made_by;  // observed value -> node
  std::optional<planning::CalibrationCost> cost;
  calibration::Statistics statistics;
  std::uint64_t samples_run = 0;  // by this process; 0 when the statistics were taken before
  Recording recording;
  double collect_start = 0;  // by the profiler's clock
  std::optional<Comparison> comparison;
  profile::MachinePeaks machine;

  /// Of a run that used GPUs. What they did is in the profiler's DeviceActivity.
  struct Device {
    DeviceConfig config;
    std::optional<OnDevice> calibration;  // none: the CPU calibrated
    profile::DevicePeaks peaks;           // of the first
  };
  std::optional<Device> device;
};

/// What to write, and facts for the page beside the measurements.
struct ReportRequest {
  const Options& options;  // must outlive it, as the result
  std::vector<std::string> notes;
  std::filesystem::path work_dir;
  const QuantizeResult* quantized = nullptr;  // none: calibration alone
};

/// Throws usage when a path names a file that is neither empty nor a report or trace, so that a mistyped path cannot
/// overwrite a model.
void check_report_paths(const std::optional<std::filesystem::path>& html,
                        const std::optional<std::filesystem::path>& trace);

/// Layers with their work; shapes as in the first sample of `source`, which is rewound.
void describe_layers(const Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
                     data::SampleSource& source, const planning::Circumstances& circumstances, RunReport& report);

/// Writes the HTML report and the trace, where they are asked for. Measures the machine's peak rates, which takes half
/// a second, and adds the layers of one run to the profiler's spans.
void write_reports(RunReport& report, const ReportRequest& request, RunProfiler& profiler);

/// The data of the page (docs/report.md).
std::string report_json(const RunReport& report, const ReportRequest& request, const RunProfiler& profiler);

void record(const quantization::NodeCounts& counts, QuantizeResult& result);

/// Nodes that compute on integers; and all other products, in bodies as well, with what else was selected. Notes tell
/// where bodies hold products. `has_integers` tells of a value or constant whether it is stored as integers.
quantization::NodeCounts count_nodes(const onnx::Model& model, const quantization::Placement& placement,
                                     const std::function<bool(const std::string&)>& has_integers);

/// The same where all that is placed is; the placement gets it.
void count_nodes(const onnx::Model& model, quantization::Placement& placement);

/// Counts nodes and records scale, zero point, range and method of each activation.
void record_assignment(const onnx::Model& model, const quantization::Assignment& assignment, QuantizeResult& result);

/// Notes that concern this machine only: the model is the same wherever it is made.
std::vector<std::string> notes_for_this_machine(const QuantConfig& config);

}  // namespace detent::run
