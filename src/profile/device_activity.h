// What GPUs did in a run, as the code that drives them tells it: work on lanes of its own, bytes on their way, memory.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "profile/report.h"

namespace detent::profile {

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
