// What concerns the whole process: its start, its memory, its deadline, the devices that it may use.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "detent/error.h"

namespace detent {

/// Opens /dev/null in the place of each of the descriptors 0, 1 and 2 that is closed, so that no file of the run takes
/// it and gets what is printed. On Windows also: files and pipes take what is written byte for byte, and consoles take
/// UTF-8 and colours.
void open_standard_descriptors() noexcept;

/// The words of the command line, on Windows in UTF-8.
std::vector<std::string> command_line(int argc, char** argv);

/// Gives back the pages of the heap that nothing uses, where the C library can.
void trim_heap() noexcept;

/// While one is alive, large blocks have pages of their own, which go back as soon as they are freed. Else they may lie
/// between others and stay. For reading models: copies of weights come and go. No effect where the C library cannot.
class LargeBlocksApart {
 public:
  LargeBlocksApart() noexcept;
  ~LargeBlocksApart();
  LargeBlocksApart(const LargeBlocksApart&) = delete;
  LargeBlocksApart& operator=(const LargeBlocksApart&) = delete;
};

/// Memory at a multiple of `alignment`, of which `size` is one; null when there is none. For free_aligned().
void* allocate_aligned(std::size_t alignment, std::size_t size) noexcept;
void free_aligned(void* block) noexcept;

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
