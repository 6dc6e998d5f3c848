// Calibration alone: a float ONNX model and samples in, statistics of its activations out. `quantize` takes them
// instead of running the model, with any calibration method.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/config.h"
#include "detent/device.h"
#include "detent/error.h"
#include "detent/profile.h"
#include "detent/progress.h"
#include "detent/resources.h"
#include "detent/samples.h"
#include "detent/stage_report.h"

namespace detent {

struct CalibrateOptions {
  std::filesystem::path model;
  std::filesystem::path output;  // the statistics file
  std::filesystem::path calibration_data;
  /// Samples in memory instead of calibration_data; must outlive the run.
  SampleStream* samples = nullptr;
  /// Says which activations are observed: the same selection as for quantize().
  QuantConfig config = preset_config(Preset::balanced);
  /// Without histograms only the method minmax works later.
  bool histograms = true;
  /// Also find for each sample which power-of-two scale is best (MethodConfig::most_common).
  bool most_common = false;
  bool allow_nonfinite = false;
  std::size_t max_samples = 0;  // 0: all
  std::int64_t batch_size = 0;  // rows per run; 0: as the files have them
  int threads = 0;              // of the runtime; 0: one per core
  int workers = 1;              // samples at a time
  /// Where the model runs and is observed: the CPU, or the first of these.
  DeviceConfig device;
  std::optional<std::filesystem::path> profile;
  /// Takes up the stages instead of a profile of this run's own; must outlive the run.
  Profiler* profiler = nullptr;
  /// As for quantize(), without what only a quantized model tells. Of several processes, rank 0 writes its own.
  std::optional<std::filesystem::path> report;
  std::optional<std::filesystem::path> trace;
  std::vector<std::string> command;
  std::optional<std::filesystem::path> runtime;
  Resources resources;
  Progress progress;
  std::stop_token stop;
};

struct CalibrateResult {
  std::uint64_t samples = 0;
  std::size_t tensors = 0;
  std::uint64_t output_bytes = 0;
  int rank = 0;  // among the processes that MPI started together; only rank 0 writes
  int ranks = 1;
  std::vector<std::string> notes;
  std::vector<StageReport> stages;
  std::uint64_t peak_memory = 0;  // bytes, the process's own high-water mark
};

/// Writes statistics; the same bytes for any order of samples, workers and ranks. Started by mpirun, each process takes
/// its share of the samples and rank 0 writes. Throws Error.
CalibrateResult calibrate(const CalibrateOptions& options);

/// Writes the sum of several statistics files of one model, as if all their samples had been calibrated at once. Throws
/// Error for files that do not belong together.
CalibrateResult merge_statistics(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output);

}  // namespace detent
