#include "base/deadline.h"

#include <algorithm>
#include <utility>

namespace detent {
namespace {

constexpr std::chrono::duration<double> kGrace = std::chrono::seconds(5);

std::atomic<void (*)(const Error&)> end_overdue = nullptr;

}  // namespace

Deadline::Deadline(double seconds, const std::stop_token& stop, Error error)
    : error_(std::move(error)),
      outer_(stop, [this] { source_.request_stop(); }),
      waiter_(
          [this, time = std::chrono::duration<double>(seconds)](const std::stop_token& ended) { wait(ended, time); }) {}

void Deadline::wait(const std::stop_token& ended, std::chrono::duration<double> time) {
  constexpr std::chrono::duration<double> kForEver = std::chrono::hours(24 * 365 * 100);  // what clocks can count
  std::unique_lock lock(mutex_);
  ended_.wait_for(lock, ended, std::min(time, kForEver), [] { return false; });
  if (ended.stop_requested() || source_.stop_requested()) return;
  passed_ = true;
  source_.request_stop();
  ended_.wait_for(lock, ended, std::min(time / 4, kGrace), [] { return false; });
  const auto end = end_overdue.load();
  if (!ended.stop_requested() && end != nullptr) end(error_);
}

void set_overdue_handler(void (*end)(const Error& error)) noexcept { end_overdue = end; }

}  // namespace detent
