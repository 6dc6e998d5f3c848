#include "store/io_queue.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/failpoint.h"

namespace detent::store {
namespace {

// Plain system calls on a few threads.
class ThreadQueue : public IoQueue {
 public:
  explicit ThreadQueue(std::size_t threads) {
    for (std::size_t i = 0; i < threads; ++i) {
      threads_.emplace_back([this](const std::stop_token& stop) { work(stop); });
    }
  }

  void start(IoRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push(request);
    }
    begun_.notify_one();
  }

  IoRequest& finish() override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return !done_.empty(); });
    return done_.pop();
  }

 private:
  void work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (begun_.wait(lock, stop, [&] { return !waiting_.empty(); })) {
      IoRequest& request = waiting_.pop();
      lock.unlock();
      run(request);
      lock.lock();
      done_.push(request);
      ended_.notify_one();
    }
  }

  static void run(IoRequest& request) {
    request.error = injected_error(request);
    while (request.error == 0 && request.done < request.data.size()) {
      const auto rest = request.data.subspan(request.done);
      const auto at = static_cast<off_t>(request.offset + request.done);
      const ssize_t n = request.write ? ::pwrite(request.fd, rest.data(), rest.size(), at)
                                      : ::pread(request.fd, rest.data(), rest.size(), at);
      if (n == 0) return;
      if (n > 0) {
        request.done += static_cast<std::size_t>(n);
      } else if (errno != EINTR) {
        request.error = errno;
      }
    }
  }

  std::mutex mutex_;
  std::condition_variable_any begun_;
  std::condition_variable ended_;
  RequestList waiting_, done_;
  std::vector<std::jthread> threads_;  // last: they use all of the above
};

}  // namespace

int injected_error(const IoRequest& request) noexcept {
  return failpoint(request.write ? "spool.write" : "spool.read");
}

std::unique_ptr<IoQueue> make_io_queue(DiskAccess access) {
  if (access != DiskAccess::uring) {
    return std::make_unique<ThreadQueue>(access == DiskAccess::direct ? 4 : 2);
  }
  std::string refusal;
  auto queue = make_uring_queue(refusal);
  if (!queue) {
    throw resource_error(fmt::format("io_uring cannot be used here: {}", refusal), "choose another disk access");
  }
  return queue;
}

int open_flags(DiskAccess access) noexcept { return access == DiskAccess::buffered ? 0 : O_DIRECT; }

const char* name_of(DiskAccess access) noexcept {
  switch (access) {
    case DiskAccess::automatic: return "automatic";
    case DiskAccess::buffered: return "buffered";
    case DiskAccess::direct: return "direct";
    case DiskAccess::uring: return "io_uring";
  }
  return "";
}

}  // namespace detent::store
