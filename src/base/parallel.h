// A loop over independent items on a few threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace detent {

/// Threads to work with where a user asks for so many; 0: one for each core.
inline std::size_t thread_count(int threads) {
  return threads > 0 ? static_cast<std::size_t>(threads) : std::max(1U, std::thread::hardware_concurrency());
}

/// Calls fn(i) once for each i in [0, count), on up to `threads` threads, and waits. After an exception no further item
/// is begun; the one of the smallest item comes out.
template <class Fn>
void parallel_for(std::size_t count, std::size_t threads, const Fn& fn) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::size_t failed_item = count;
  std::exception_ptr failure;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        fn(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed_item) {
          failed_item = i;
          failure = std::current_exception();
        }
        next = count;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      for (std::size_t t = 1; t < threads && t < count; ++t) others.emplace_back(work);
    } catch (...) {  // no further thread can be had
      next = count;
      throw;
    }
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace detent
