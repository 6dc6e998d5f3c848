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
#include "profile/machine.h"

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

// Which resource sets the pace of a stage: its work held against what the machine can do.

/// What a stage did. Amounts that are not known are 0.
struct Work {
  double seconds = 0;
  double flops = 0;
  double memory_bytes = 0;  // to and from main memory
  double disk_bytes = 0;    // read and written
  double bus_bytes = 0;     // between host and device
  double cpu_seconds = 0;   // over all threads
  /// In which some program waited for a processor.
  double pressure_seconds = 0;
};

struct Bottleneck {
  enum class Bound { compute, memory, disk, transfer, waiting, contention };

  Bound bound = Bound::waiting;
  /// Of the bound's peak rate, 0 to 1; for waiting that of the resource that comes nearest to its peak.
  double share = 0;
  /// One sentence. It names options of detent where any helps.
  std::string advice;
};

/// "compute", "memory", "disk", "transfer", "waiting" or "contention".
std::string_view bound_name(Bottleneck::Bound bound) noexcept;

/// Below this share of its peak no resource sets the pace.
constexpr double kLeastShare = 0.25;
/// With this share of the threads' time spent on the processor nobody waits, whatever the work is.
constexpr double kBusyShare = 0.7;

/// With this share of the time under pressure, a stage that kept the processor less busy waited for other programs.
constexpr double kPressureShare = 0.3;

/// The names by which find_bottleneck() knows the stages "Calibration" and "Fast Finetune" of a run on a GPU.
inline constexpr std::string_view kCalibrationOnGpu = "Calibration on a GPU";
inline constexpr std::string_view kTuningOnGpu = "Fast Finetune on a GPU";

/// Each resource needs at least its amount divided by its peak; the one that needs the largest part of the stage's time
/// is the bound. When none needs a quarter of it, the bound is compute if the processor was busy all the same (with
/// other work than arithmetic on float32), contention if other programs had it, else waiting. `stage` is a name as in
/// the profile; it only chooses the advice.
Bottleneck find_bottleneck(const Work& work, const MachinePeaks& peaks, std::string_view stage);

// The report of a run as one page of HTML that needs neither a network nor any other file. docs/report.md tells what it
// shows and how to read it; the page itself lies in src/profile/report/.

/// The page for the figures in `report_json`, an object whose keys docs/report.md lists. Names may hold anything:
/// markup stays text, and bytes that are not UTF-8 become U+FFFD. Empty text counts as an empty object.
std::string html_report(std::string_view report_json);

/// JSON for the inside of a script element.
std::string script_safe(std::string_view json);

}  // namespace detent::profile
