// Gathers what a quantization run learned, for the report and the trace.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "calibrate/statistics.h"
#include "detent/compare.h"
#include "detent/quantize.h"
#include "pipeline/collect.h"
#include "pipeline/prepare.h"
#include "plan/calibration.h"
#include "profile/machine.h"
#include "profile/profiler.h"
#include "quantize/placement.h"

namespace detent::pipeline {

/// A node of the float model.
struct LayerRecord {
  std::string name;
  std::string op_type;
  std::string input;   // first input
  std::string output;  // first output: what links it to times and errors
  graph::Work work;    // of one run
  double seconds = 0;  // of one run; 0 when the runtime fused the node into another
};

struct RunReport {
  std::vector<LayerRecord> layers;
  std::map<std::string, std::string> made_by;  // observed value -> node
  std::optional<planning::CalibrationCost> cost;
  calibration::Statistics statistics;
  Recording recording;
  double collect_start = 0;  // by the profiler's clock
  std::optional<Comparison> comparison;
  profile::MachinePeaks machine;
};

/// Throws usage when `path` holds something that is neither empty nor HTML: a mistyped path must not cost a model.
void check_report_path(const std::filesystem::path& path);

/// Of quantize(): the HTML report and the trace, from what was gathered. Measures the machine, which takes half a
/// second, and adds the layers of one run to the profiler's spans.
void write_reports(RunReport& report, const QuantizeOptions& options, const QuantizeResult& result,
                   const std::filesystem::path& work_dir, profile::Profiler& profiler);

/// Layers with their work; shapes as in the first sample of `source`, which is rewound.
void describe_layers(const Prepared& prepared, const quantization::Placement& placement, const exec::Runtime& runtime,
                     data::SampleSource& source, const planning::Circumstances& circumstances, RunReport& report);

}  // namespace detent::pipeline
