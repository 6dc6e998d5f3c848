// What a profile consists of and how it is spelled in the file. The spelling is a format that other tools read: see
// docs/profile.md before changing it.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace detent::profile {

/// The steps whose names other tools know. Anything else goes by a name of its own.
enum class Step {
  pre_process,
  calibration,
  quantization_static,
  quantization_dynamic,
  quantization_matmul_nbits,
  post_process,
  fast_finetune,
  model_caching,
  float_model_validation,
  model_loaded,  // a single moment: for checkpoint(), not for scope()
};

/// The name as it stands in the file, e.g. "Quantization (Static)".
std::string_view step_name(Step step) noexcept;

/// One moment of the run. Sizes in bytes, times in seconds; disk figures count from the start of the profile.
struct Checkpoint {
  std::string step;
  double timestamp = 0;  // Unix time
  double relative = 0;   // since the start of the profile
  std::uint64_t resident = 0;
  std::uint64_t disk_read = 0;
  std::uint64_t disk_written = 0;
  std::optional<std::uint64_t> gpu_memory = {};  // none: no GPU is measured
};

/// One scope, in the order of opening. The figures are those between its start and its end, children included, and of
/// all threads: scopes that overlap count the same work.
struct StageTime {
  std::string name;
  double seconds = 0;
  std::uint64_t peak_memory = 0;
  std::uint64_t peak_anonymous = 0;
  double start = 0;  // seconds since the start of the profile
  double cpu_seconds = 0;
  std::uint64_t disk_read = 0;
  std::uint64_t disk_written = 0;
  double pressure_seconds = 0;  // in which some program waited for a processor
};

/// A stretch of time that was named after the fact, such as one layer's. `start` is in seconds since the start of the
/// profile. Not a stage: it has no checkpoints.
struct TraceSpan {
  std::string name;
  double start = 0;
  double seconds = 0;
  std::string lane = {};  // where the trace shows it; empty: among the layers
};

struct Summary {
  double seconds = 0;
  double cpu_seconds = 0;
  std::uint64_t peak_memory = 0;
  std::uint64_t peak_anonymous = 0;
  std::uint64_t disk_read = 0;
  std::uint64_t disk_written = 0;
  std::uint64_t peak_directories = 0;
  std::optional<std::uint64_t> peak_gpu_memory = {};  // none: no GPU was measured
  std::vector<StageTime> stages;
};

/// `text` as a YAML double-quoted scalar on one line. Bytes that are not UTF-8 become U+FFFD.
std::string yaml_quoted(std::string_view text);

std::string header_text();
std::string checkpoint_text(const Checkpoint& checkpoint);
std::string summary_text(const Summary& summary);

/// A profile being written. Each append() reaches the kernel before it returns, so it outlives a killed process.
class ReportFile {
 public:
  /// Creates the file, or replaces one that is empty or an earlier profile. Throws usage when it cannot be created, and
  /// when the path holds any other file: a mistyped path must not cost a model.
  explicit ReportFile(std::filesystem::path path);
  ReportFile(const ReportFile&) = delete;
  ReportFile& operator=(const ReportFile&) = delete;
  ~ReportFile();

  /// Never throws for a failed write: it takes a torn record back, drops what follows and keeps the error in failure().
  void append(std::string_view text) noexcept;
  /// Has what was written so far outlive a power failure too, as far as the file can.
  void sync() noexcept;
  std::exception_ptr failure() const noexcept { return failure_; }

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  std::uint64_t size_ = 0;
  std::exception_ptr failure_;
};

}  // namespace detent::profile
