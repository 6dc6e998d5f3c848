// What happened when: memory over time, the work of devices, and the trace that shows both.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "profile/report.h"

namespace detent::profile {

/// The run up to `time` since the point before: memory is the largest seen in between, disk what had gone through by
/// then since the start of the profile. Bytes; children included.
struct TimelinePoint {
  double time = 0;  // seconds since the start of the profile
  std::uint64_t resident = 0;
  std::uint64_t anonymous = 0;
  std::uint64_t disk_read = 0;
  std::uint64_t disk_written = 0;
  std::uint64_t gpu_memory = 0;  // 0 where no GPU is measured
  unsigned gpu_busy = 0;         // percent, see GpuMemory; the largest in between
  // Of all devices that detent drives, see DeviceActivity; 0 where nothing was told.
  std::uint64_t device_memory = 0;   // the largest in between
  std::uint64_t device_copied = 0;   // over the bus by then
  std::uint64_t device_storage = 0;  // from storage by then
};

/// Points evenly spread over the time: at most one for each step, and the step doubles whenever there are too many.
/// Not for several threads at a time.
class Timeline {
 public:
  static constexpr std::size_t kCapacity = 2000;
  static constexpr double kFirstStep = 0.02;

  /// `capacity` is at least 2, `step` in seconds is positive.
  explicit Timeline(std::size_t capacity = kCapacity, double step = kFirstStep);

  /// Readings come in the order of time; one that is earlier than the last counts as taken with it. Disk figures never
  /// fall: what a child took with it stays counted.
  void add(TimelinePoint reading);

  /// Oldest first, each later than the one before; never more than the capacity.
  const std::vector<TimelinePoint>& points() const noexcept { return points_; }
  /// Seconds that one point stands for.
  double step() const noexcept { return step_; }

 private:
  bool same_step(double a, double b) const noexcept;
  void thin();

  std::size_t capacity_;
  double step_;
  std::vector<TimelinePoint> points_;
};

// A profile as a picture: the file that Perfetto (ui.perfetto.dev) and chrome://tracing open.

/// Writes stages and spans as bars, each kind and lane on tracks of its own, and memory, disk, bus and storage rates as
/// curves. Bars that overlap without one holding the other, as those of several workers do, get further tracks. Any
/// bytes are good as names and lanes. Times that are negative or not finite count as 0, longer ones than 1e9 seconds as
/// that.
///
/// The file appears whole or not at all. Throws as check_trace_path does, and resource when the disk is full.
void write_trace(const std::filesystem::path& path, const std::vector<StageTime>& stages,
                 const std::vector<TimelinePoint>& timeline, const std::vector<TraceSpan>& spans);

/// Throws usage when `path` holds something that is neither empty nor a trace: a mistyped path must not cost a model.
/// For the start of a run, so that it does not fail at its end.
void check_trace_path(const std::filesystem::path& path);

// What GPUs did in a run, as the code that drives them tells it: work on lanes of its own, bytes on their way, memory.

/// Where work for a device is done: by the host, which brings samples together; from storage into the device's memory,
/// by whatever way; over the bus between pinned memory and the device; by the device itself.
enum class DeviceLane { gather, read, copy, compute };
std::string_view lane_name(DeviceLane lane) noexcept;

/// What a piece of work moved and computed. Bytes are those read from storage, copied, or brought together; of compute,
/// the least that has to pass the device's memory. A multiply-add counts as two operations.
struct DeviceAmount {
  std::uint64_t bytes = 0;
  double flops = 0;
};

/// One kind of work on one lane, over the whole run.
struct DeviceTotal {
  int device = 0;
  DeviceLane lane = DeviceLane::compute;
  std::string what;
  std::uint64_t count = 0;
  double seconds = 0;  // added up: work of one lane may overlap
  DeviceAmount amount;
};

struct DeviceUse {
  int number = 0;
  std::string name;
  std::uint64_t memory_budget = 0;
  std::uint64_t memory_foretold = 0;  // what was to be taken at the most; 0: nothing was said
  std::uint64_t memory_peak = 0;      // counted by detent: without the driver's own
  std::string storage;                // how stored samples were read, and why; empty: none were
};

/// Totals of everything, and single spans of the first work of each kind, so that a long run stays a small trace.
/// All members may be called from any thread.
class DeviceActivity {
 public:
  using Clock = std::chrono::steady_clock;

  /// `start`: the moment that spans count from.
  explicit DeviceActivity(Clock::time_point start) noexcept : start_(start) {}
  DeviceActivity(const DeviceActivity&) = delete;
  DeviceActivity& operator=(const DeviceActivity&) = delete;

  double seconds_at(Clock::time_point moment) const noexcept;

  /// Totals and devices are those of a run that begins now; spans and counters go on. Runs that share a profile and use
  /// devices come one after the other.
  void begin_run();

  /// Spans from now on are of this work (a layer, say), and are kept in full again for a while: up to `most` on each
  /// lane, and ever fewer when the trace gets long.
  void begin(std::string work, std::size_t most = kMostOfOne);
  /// `what` happened from `start` (as seconds_at() tells it) on.
  void add(int device, DeviceLane lane, std::string_view what, double start, double seconds, DeviceAmount amount);

  void add_device(int number, std::string name, std::uint64_t memory_budget);
  /// The largest of all that are foretold is what counts.
  void add_memory_estimate(int number, std::uint64_t bytes);
  void set_memory(int number, std::uint64_t used);
  void set_storage(int number, std::string how);

  /// Over all devices, until now.
  struct Counters {
    std::uint64_t bus_bytes = 0;      // copied
    std::uint64_t storage_bytes = 0;  // read
    std::uint64_t memory = 0;         // in use now, as detent counts it
    std::uint64_t memory_peak = 0;    // since the call before this one
  };
  Counters counters();

  /// Each on the lane "cuda:0 copy" and the like, in no order.
  std::vector<TraceSpan> spans() const;
  /// In the order of devices, lanes and names.
  std::vector<DeviceTotal> totals() const;
  std::vector<DeviceUse> devices() const;

  static constexpr std::size_t kMostOfOne = 256;
  static constexpr std::size_t kMostSpans = 40'000;

 private:
  using Kind = std::tuple<int, DeviceLane, std::string>;
  struct Use {
    DeviceUse use;
    std::uint64_t memory = 0;
  };

  Use& use_of(int number);

  const Clock::time_point start_;
  mutable std::mutex mutex_;  // guards what follows
  std::string work_;
  std::size_t most_ = kMostOfOne;                                // spans of a lane, of the work at hand
  std::map<std::pair<int, DeviceLane>, std::size_t> kept_here_;  // of them, so far
  std::vector<TraceSpan> spans_;
  std::map<Kind, DeviceTotal, std::less<>> totals_;
  std::map<int, Use> devices_;
  Counters counters_;
};

}  // namespace detent::profile
