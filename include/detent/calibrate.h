// Calibration only: a float ONNX model and samples in, statistics of its activations out. `quantize` uses them with any
// calibration method instead of running the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "detent/error.h"
#include "detent/options.h"
#include "detent/stage_report.h"

namespace detent {

using CalibrateOptions = Options;

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
