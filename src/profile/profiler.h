// Measures a run: named checkpoints and scopes, the peaks between them, and a YAML file that grows as they happen.
#pragma once

#include <algorithm>
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

#include "profile/gpu_memory.h"
#include "profile/meters.h"
#include "profile/report.h"
#include "profile/trace.h"

namespace detent::profile {

struct ProfilerOptions {
  std::optional<std::filesystem::path> yaml;  // without it the figures stay in memory
  bool sample = true;                         // without it peaks are those seen at checkpoints and by the kernel
  /// Measure GPU memory with this library from the start. By default it is the driver's, from when the process first
  /// loads CUDA: before that it has no GPU memory, and asking would start an idle GPU.
  std::optional<GpuMeter::Options> gpu = {};
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

  /// Seconds since the start of the profile.
  double now() const { return elapsed(); }
  /// Notes what happened from `start` (as now() told it) on. Spans show in the trace and nowhere else, and may come at
  /// any time, also after finish(). Each is kept: name layers, not each layer's every sample.
  void add_span(std::string name, double start, double seconds);
  std::vector<TraceSpan> spans() const;

  /// Where those who drive GPUs note what they do, on this profile's clock. Its counters go into the timeline.
  DeviceActivity& device() noexcept { return device_; }
  const DeviceActivity& device() const noexcept { return device_; }

  /// Counts `directory` (there now or later) into the working directories' size from here on.
  void watch_directory(std::filesystem::path directory);

  /// Ends the measurement: "End" and the summary. Stages still open end here. Later calls of anything change nothing.
  /// The first call throws what kept the file from being complete; the destructor calls it and says nothing.
  void finish();

  /// The figures so far; final after finish().
  Summary summary() const;
  std::vector<StageTime> stages() const { return summary().stages; }
  /// The run so far: a reading every 20 ms and at checkpoints, merged as the run goes on.
  std::vector<TimelinePoint> timeline() const;
  /// Bytes: the kernel's high-water mark of this process, or the largest sum with its children where that is more.
  /// Counts what comes after finish() as well, such as writing the report.
  std::uint64_t peak_memory() const { return std::max(summary().peak_memory, peak_resident()); }

 private:
  friend class Scope;
  using Clock = std::chrono::steady_clock;
  struct Stage {
    StageTime time;
    std::uint64_t peak_before = 0;
    double pressure_before = 0;
    double cpu_before = 0;
    DiskTraffic disk_before;
    bool open = true;
  };

  /// All figures of one moment; disk since the start of the profile.
  struct Reading {
    double time = 0;
    Memory memory;
    DiskTraffic disk;
  };

  double elapsed() const;
  DiskTraffic since_start(const DiskTraffic& disk) const;
  Reading mark(std::string step);
  void note(const Reading& reading);
  void close(std::size_t stage) noexcept;
  void measure_up_to(Stage& stage, const Reading& now) const;
  Summary summary_at(double relative) const;
  void sample(const std::stop_token& stop);
  void scan_directories(Clock::duration gap);
  void read_gpu();
  void look_around();

  const Clock::time_point started_ = Clock::now();
  const double started_unix_;
  const DiskTraffic disk_before_;
  const double cpu_before_;
  DeviceActivity device_{started_};  // guards itself

  mutable std::mutex mutex_;  // guards what follows
  std::optional<ReportFile> file_;
  std::vector<Stage> stages_;
  Memory peak_;
  std::uint64_t high_water_ = peak_resident();  // of this process, at the last reading
  std::uint64_t peak_directories_ = 0;
  std::vector<std::filesystem::path> directories_;
  Timeline timeline_;
  std::vector<TraceSpan> spans_;
  std::optional<std::uint64_t> gpu_memory_;
  std::uint64_t gpu_memory_to_note_ = 0;  // the largest since the last point of the timeline
  unsigned gpu_busy_ = 0;                 // at the last reading
  std::optional<std::uint64_t> peak_gpu_memory_;
  bool gpu_memory_is_own_ = false;
  std::optional<Summary> final_;

  std::mutex scan_mutex_;  // guards the next two; taken before mutex_, never after
  Clock::time_point scanned_;
  Clock::duration scan_cost_{};

  std::mutex gpu_mutex_;  // guards the next two; taken before mutex_, never after
  std::optional<GpuMeter> gpu_;
  bool gpu_sought_ = false;

  std::jthread sampler_;  // last, so that it has ended before anything it uses goes
};

}  // namespace detent::profile
