// Times of queued work, told to the log of a run once the device has done it.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "cuda/stream.h"
#include "profile/device_activity.h"

namespace detent::cuda {

using profile::DeviceAmount;
using profile::DeviceLane;

/// Of one device, by one thread at a time whose device it is. Without a log nothing is timed.
class ActivityClock {
 public:
  explicit ActivityClock(int device) noexcept : device_(device) {}

  /// Waits for `stream`, to know where the device's clock stands beside the host's. Null: nothing is logged from now
  /// on.
  void log_to(profile::DeviceActivity* log, const Stream& stream);
  profile::DeviceActivity* log() const noexcept { return log_; }

  /// Calls `work`, which queues work in `stream`; the time is the device's. `what` is a literal. Not while a graph is
  /// recorded.
  template <class Work>
  void queued(const Stream& stream, DeviceLane lane, const char* what, DeviceAmount amount, const Work& work) {
    if (log_ == nullptr) return work();
    Timed& timed = next();
    timed.begin->record(stream);
    work();
    timed.end->record(stream);
    timed.lane = lane;
    timed.what = what;
    timed.amount = amount;
  }
  /// Calls `work`, which the host does.
  template <class Work>
  void on_host(DeviceLane lane, const char* what, std::uint64_t bytes, const Work& work) {
    if (log_ == nullptr) return work();
    const auto begin = profile::DeviceActivity::Clock::now();
    work();
    tell_host(lane, what, bytes, begin);
  }

  /// Waits for all that was timed and tells of it. For moments at which the host waits for the device anyway.
  void report_finished_work();

 private:
  struct Timed {
    std::unique_ptr<Event> begin, end;
    DeviceLane lane = DeviceLane::compute;
    const char* what = "";
    DeviceAmount amount;
  };

  Timed& next();
  void tell_first();
  void tell_host(DeviceLane lane, const char* what, std::uint64_t bytes,
                 profile::DeviceActivity::Clock::time_point begin) const;

  int device_;
  profile::DeviceActivity* log_ = nullptr;
  std::unique_ptr<Event> base_;
  double base_seconds_ = 0;
  const Stream* stream_ = nullptr;  // for the next base
  std::deque<Timed> under_way_;
  std::vector<Timed> free_;
};

}  // namespace detent::cuda
