// Measures a run: named checkpoints and scopes, the peaks between them, and a YAML file that grows as they happen.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "profile/meters.h"
#include "profile/report.h"

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

struct ProfilerOptions {
  std::optional<std::filesystem::path> yaml;  // without it the figures stay in memory
  bool sample = true;                         // without it peaks are those seen at checkpoints and by the kernel
};

class Profiler;

/// An open stage; "<name> End" is written when it goes. Must not outlive its profiler.
class [[nodiscard]] Scope {
 public:
  Scope(Scope&& other) noexcept : profiler_(std::exchange(other.profiler_, nullptr)), stage_(other.stage_) {}
  Scope& operator=(Scope&&) = delete;
  ~Scope();

 private:
  friend class Profiler;
  Scope(Profiler* profiler, std::size_t stage) noexcept : profiler_(profiler), stage_(stage) {}

  Profiler* profiler_;
  std::size_t stage_;
};

/// All members may be called from any thread. A file that stops taking writes never stops the run: finish() tells.
class Profiler {
 public:
  /// Creates the file, if any, with its "Start" checkpoint. Throws usage when the file cannot be created.
  explicit Profiler(std::optional<std::filesystem::path> yaml = std::nullopt);
  explicit Profiler(ProfilerOptions options);
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;
  ~Profiler();

  Scope scope(Step step) { return scope(step_name(step)); }
  /// Writes "<name> Start" now and "<name> End" when the scope goes. Scopes may nest and overlap.
  Scope scope(std::string_view name);
  void checkpoint(Step step) { checkpoint(step_name(step)); }
  void checkpoint(std::string_view name);

  /// Counts `directory` (there now or later) into the working directories' size from here on.
  void watch_directory(std::filesystem::path directory);

  /// Ends the measurement: "End" and the summary. Stages still open end here. Later calls of anything change nothing.
  /// The first call throws what kept the file from being complete; the destructor calls it and says nothing.
  void finish();

  /// The figures so far; final after finish().
  Summary summary() const;
  std::vector<StageTime> stages() const { return summary().stages; }
  /// Bytes: the kernel's high-water mark of this process, or the largest sum with its children where that is more.
  std::uint64_t peak_memory() const { return summary().peak_memory; }

 private:
  friend class Scope;
  using Clock = std::chrono::steady_clock;
  struct Stage {
    StageTime time;
    double opened = 0;
    std::uint64_t peak_before = 0;
    bool open = true;
  };

  double elapsed() const;
  double mark(std::string step);
  void note(const Memory& memory);
  void close(std::size_t stage) noexcept;
  Summary summary_at(double relative) const;
  void sample(const std::stop_token& stop);
  void scan_directories(Clock::duration gap);

  const Clock::time_point started_ = Clock::now();
  const double started_unix_;
  const DiskTraffic disk_before_;
  const double cpu_before_;

  mutable std::mutex mutex_;  // guards what follows
  std::optional<ReportFile> file_;
  std::vector<Stage> stages_;
  Memory peak_;
  std::uint64_t peak_directories_ = 0;
  std::vector<std::filesystem::path> directories_;
  std::optional<Summary> final_;

  std::mutex scan_mutex_;  // guards the next two; taken before mutex_, never after
  Clock::time_point scanned_;
  Clock::duration scan_cost_{};

  std::jthread sampler_;  // last, so that it has ended before anything it uses goes
};

}  // namespace detent::profile
