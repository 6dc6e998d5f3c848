// Calibration only: a float ONNX model and samples in, statistics of its activations out. `quantize` uses them with any
// calibration method instead of running the model.
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
  /// Selects the activations that are observed, as for quantize().
  QuantConfig config = preset_config("balanced");
  /// Without histograms only the method minmax works later.
  bool histograms = true;
  /// Also find the best power-of-two scale for each sample (MethodConfig::most_common).
  bool most_common = false;
  bool allow_nonfinite = false;
  std::size_t max_samples = 0;  // 0: all
  std::int64_t batch_size = 0;  // rows per run; 0: as the files have them
  /// Inputs that are one number in every sample, beside those that the samples hold: "sr=16000".
  std::vector<std::string> input_values;
  int threads = 0;  // of the runtime; 0: one per core
  int workers = 1;  // samples run at a time
  /// The model runs on the first of these devices, or on the CPU.
  DeviceConfig device;
  std::optional<std::filesystem::path> profile;
  /// Records the stages instead of a profile of this run's own; must outlive the run.
  Profiler* profiler = nullptr;
  /// As for quantize(), without the sections about a quantized model. Of several processes, rank 0 writes its own.
  std::optional<std::filesystem::path> report;
  std::optional<std::filesystem::path> trace;
  std::vector<std::string> command;
  std::optional<std::filesystem::path> runtime;
  Resources resources;
  Progress progress;
  std::stop_token stop;
};

/// The result of calibrate() or merge_statistics().
struct CalibrateResult {
  std::uint64_t samples = 0;
  std::size_t tensors = 0;
  std::uint64_t output_bytes = 0;
  int rank = 0;  // MPI rank of this process; only rank 0 writes
  int ranks = 1;
  std::vector<std::string> notes;
  std::vector<StageReport> stages;
  std::uint64_t peak_memory = 0;  // [bytes] the process's own high-water mark
};

/// Writes statistics: the same bytes for any order of samples and any number of workers and ranks. Under mpirun each
/// process takes a share of the samples and rank 0 writes. Throws Error.
CalibrateResult calibrate(const CalibrateOptions& options);

/// Writes the sum of several statistics files of one model, as if all their samples had been calibrated in one run.
/// Throws Error for files that do not belong together.
CalibrateResult merge_statistics(const std::vector<std::filesystem::path>& inputs, const std::filesystem::path& output);

}  // namespace detent
