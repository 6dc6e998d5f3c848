// A limit on the time that something may take.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

#include "detent/error.h"

namespace detent {

/// Requests a stop when so many seconds have passed, and when one is requested of `stop`. What has not ended a
/// quarter of that time later, five seconds at most, since nothing in it looks for a stop, is overdue.
class Deadline {
 public:
  /// `error` tells of a deadline that has passed.
  Deadline(double seconds, const std::stop_token& stop, Error error);
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

  std::stop_token token() const { return source_.get_token(); }
  bool passed() const noexcept { return passed_; }
  const Error& error() const noexcept { return error_; }

 private:
  void wait(const std::stop_token& ended, std::chrono::duration<double> time);

  const Error error_;
  std::stop_source source_;
  std::atomic<bool> passed_ = false;
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::stop_callback<std::function<void()>> outer_;
  std::jthread waiter_;  // last: it uses all of the above
};

/// For a program that would rather end than wait for what is overdue: `end` is called with the deadline's error, in a
/// thread of its own. Without, what is overdue goes on.
void set_overdue_handler(void (*end)(const Error& error)) noexcept;

}  // namespace detent
