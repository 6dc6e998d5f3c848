#include "run/deadline.h"

#include <fmt/format.h>

#include <algorithm>

namespace detent::run {

Deadline::Deadline(double seconds, const std::stop_token& stop)
    : outer_(stop, [this] { source_.request_stop(); }),
      waiter_(
          [this, time = std::chrono::duration<double>(seconds)](const std::stop_token& ended) { wait(ended, time); }) {}

void Deadline::wait(const std::stop_token& ended, std::chrono::duration<double> time) {
  constexpr std::chrono::duration<double> kForEver = std::chrono::hours(24 * 365 * 100);  // what clocks can count
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, ended, std::min(time, kForEver), [] { return false; });
  if (ended.stop_requested() || source_.stop_requested()) return;
  passed_ = true;
  source_.request_stop();
}

Error time_is_over(double seconds, bool resumable) {
  return resource_error(fmt::format("the time limit of {} s has passed", seconds),
                        resumable
                            ? "the same command continues the run"
                            : "give more, or --resume from the beginning, which keeps what is done for the next run");
}

}  // namespace detent::run
