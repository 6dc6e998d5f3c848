// The private directory of a run: working files, and what a later process needs to resume it.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/numbers.h"
#include "calibration/statistics.h"
#include "data/sample.h"
#include "detent/resources.h"
#include "onnx/model.h"

namespace detent::run {

/// What a run reads, and the options that its statistics depend on.
struct RunInputs {
  const onnx::Model& model;
  const std::filesystem::path& output;
  std::optional<std::filesystem::path> calibration_data;
  const nlohmann::json& options;  // config::run_identity()
  bool histograms = false;
  bool votes = false;
  int rank = 0;
  int ranks = 1;
};

/// The same as a JSON object: a run can be resumed where all members are as they were. "output" and "rank" tell which
/// run is meant.
nlohmann::json run_identity(const RunInputs& inputs);

/// A directory in Resources::work_dir for what no run can go on with, removed on destruction. Where the process is
/// killed the next run that uses the working directory removes it.
class PrivateDirectory {
 public:
  explicit PrivateDirectory(const Resources& resources);
  PrivateDirectory(const PrivateDirectory&) = delete;
  PrivateDirectory& operator=(const PrivateDirectory&) = delete;
  ~PrivateDirectory();

  const std::filesystem::path& path() const noexcept { return directory_.path(); }

 private:
  UniqueFd lock_;
  TempDir directory_;
};

class RunDirectory {
 public:
  /// Makes a directory in Resources::work_dir, or with Resources::resume opens that of an interrupted run for the same
  /// output. Only directories count that belong to this user and are closed to others (mode 0700, no links). Throws
  /// usage when that run has not ended, or had other inputs or options; the message names the first.
  RunDirectory(const Resources& resources, const nlohmann::json& identity);
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;
  /// Removes the directory, unless the run has not finished and can be resumed.
  ~RunDirectory();

  const std::filesystem::path& path() const noexcept { return directory_.path(); }
  /// For files that no later process needs.
  const std::filesystem::path& scratch() const noexcept { return scratch_.path(); }
  /// Whether an earlier run is continued.
  bool resumed() const noexcept { return resumed_; }
  const std::vector<std::string>& notes() const noexcept { return notes_; }
  /// To be called when the output has been written.
  void finish() noexcept { finished_ = true; }

 private:
  TempDir find_or_make(const Resources& resources, const nlohmann::json& identity);
  TempDir make(const std::filesystem::path& work_dir, const nlohmann::json& identity);

  bool resume_;
  bool resumed_ = false;
  bool finished_ = false;
  std::vector<std::string> notes_;
  UniqueFd lock_;
  TempDir directory_;
  TempDir scratch_;
};

/// Of the model's file and of all tensors in its data files: a sum over the parts, so that each part can be added while
/// its pages are in memory anyway. Pages are released afterwards.
class ModelFingerprint {
 public:
  explicit ModelFingerprint(const onnx::Model& model);
  /// Adds the tensors of these names that are in data files and have not been added yet.
  void take(const std::vector<std::string>& names);
  /// Adds all other tensors.
  Fingerprint finish();

 private:
  Fingerprint sum_;
  std::map<std::string, onnx::TensorData> left_;
};
Fingerprint fingerprint_of(const onnx::Model& model);

/// Of types, shapes and values of all inputs.
Fingerprint fingerprint_of(const data::Sample& sample);

/// Sum over all samples of a source, as in calibration::Statistics.
Fingerprint fingerprint_of(data::SampleSource& source);

/// The progress of a calibration, saved so that a later process can continue it.
struct CalibrationProgress {
  std::vector<int> cuts;
  std::size_t segment = 0;             // the current one
  std::size_t done = 0;                // samples that have passed it
  std::size_t samples = 0;             // in total; 0: not known yet
  calibration::Statistics statistics;  // of the samples that are done; `data` and `samples` of those that were read
};

/// Files in a run's directory. Each save replaces the previous one atomically.
class Checkpoints {
 public:
  /// `seconds` between saves; 0: after every sample. `shares`: into how many the samples are divided, of which this
  /// process has one.
  Checkpoints(std::filesystem::path directory, double seconds, int shares = 1);

  /// The last save of an earlier process, unless that had another share. Throws bad_input when it is damaged.
  std::optional<CalibrationProgress> load() const;
  void save(const CalibrationProgress& progressed);
  /// When the next save is due. Saving takes at most about 1 % of the time.
  std::chrono::steady_clock::time_point due() const noexcept { return due_; }

 private:
  std::filesystem::path directory_;
  double seconds_;
  int shares_;
  std::size_t number_ = 0;  // of the last save
  std::chrono::steady_clock::time_point due_;
};

}  // namespace detent::run
