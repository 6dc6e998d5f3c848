// A limit on the time of a run.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

#include "base/error.h"

namespace detent::run {

/// Requests a stop when so many seconds have passed, and when one is requested of `stop`.
class Deadline {
 public:
  Deadline(double seconds, const std::stop_token& stop);
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  std::stop_token token() const { return source_.get_token(); }
  bool passed() const noexcept { return passed_; }

 private:
  void wait(const std::stop_token& ended, std::chrono::duration<double> time);

  std::stop_source source_;
  std::atomic<bool> passed_ = false;
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::stop_callback<std::function<void()>> outer_;
  std::jthread waiter_;  // last: it uses all of the above
};

/// What a run is told that Resources::time_limit has ended.
Error time_is_over(double seconds, bool resumable);

/// Calls `call` with the options; with Resources::time_limit it is stopped as by the user when that time has passed,
/// and throws resource.
template <class Options, class Call>
auto within_time(const Options& options, const Call& call) {
  if (!options.resources.time_limit) return call(options);
  const Deadline deadline(*options.resources.time_limit, options.stop);
  Options limited = options;
  limited.stop = deadline.token();
  try {
    return call(limited);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::interrupted || !deadline.passed()) throw;
    throw time_is_over(*options.resources.time_limit, options.resources.resume);
  }
}

}  // namespace detent::run
