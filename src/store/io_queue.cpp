#include "store/io_queue.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "store/buffers.h"

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

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kRequest = std::uint64_t{1} << 20;
constexpr std::uint64_t kMost = std::uint64_t{16} << 20;  // written each way
constexpr std::uint64_t kLeast = std::uint64_t{2} << 20;
constexpr auto kTime = 20ms;  // for writing the first way; the others write as much
constexpr double kMargin = 1.1;

/// A file of `directory` that has no name, or has lost it at once.
UniqueFd nameless_file(const fs::path& directory, int more_flags) {
  UniqueFd file(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | more_flags, 0600));
  if (file.valid() || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
  std::string name = (directory / "probe-XXXXXX").string();
  file = UniqueFd(::mkostemp(name.data(), O_CLOEXEC | more_flags));
  const int code = errno;
  if (file.valid()) ::unlink(name.c_str());
  errno = code;
  return file;
}

struct Rate {
  DiskAccess access;
  double bytes_per_second = 0;
  std::string refusal;
};

class Probe {
 public:
  Probe(const fs::path& directory, std::uint64_t most) : directory_(directory), size_(std::min(kMost, most)) {
    // No file system can compress this.
    auto* const words = reinterpret_cast<std::uint64_t*>(memory_.bytes().data());
    std::uint64_t random = 0x9E3779B97F4A7C15;
    for (std::size_t i = 0; i < memory_.size() / sizeof(random); ++i) {
      random ^= random << 13;
      random ^= random >> 7;
      random ^= random << 17;
      words[i] = random;
    }
  }

  Rate measure(DiskAccess access) {
    try {
      const auto queue = make_io_queue(access);
      const UniqueFd file = nameless_file(directory_, open_flags(access));
      if (!file.valid()) return {access, 0, errno == EINVAL ? "no O_DIRECT here" : errno_text(errno)};
      if (access != DiskAccess::buffered) ::fallocate(file.get(), 0, 0, static_cast<off_t>(size_));
      const double write_seconds = write(*queue, file.get());
      ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
      const Clock::time_point begin = Clock::now();
      move(*queue, file.get(), false, Clock::time_point::max());
      const double seconds = write_seconds + std::chrono::duration<double>(Clock::now() - begin).count();
      return {access, 2 * static_cast<double>(size_) / seconds, {}};
    } catch (const Error& error) {
      return {access, 0, error.what()};
    }
  }

 private:
  // The first way may find that less is enough.
  double write(IoQueue& queue, int fd) {
    const Clock::time_point begin = Clock::now();
    size_ = move(queue, fd, true, timed_ ? Clock::time_point::max() : begin + kTime);
    timed_ = true;
    if (::fdatasync(fd) != 0) throw resource_error(errno_text(errno));
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  // Moves size_ bytes or, when the time is over, fewer: how many.
  std::uint64_t move(IoQueue& queue, int fd, bool write, Clock::time_point until) {
    std::vector<IoRequest> requests(IoQueue::kDepth);
    std::uint64_t started = 0;
    std::size_t under_way = 0;
    int code = 0;
    const auto start = [&](IoRequest& request) {
      if (code != 0 || started >= size_ || (started >= kLeast && Clock::now() > until)) return;
      const std::size_t part = kRequest * static_cast<std::size_t>(&request - requests.data());
      request = {fd, write, started, memory_.bytes().subspan(part, std::min(kRequest, size_ - started))};
      started += request.data.size();
      ++under_way;
      queue.start(request);
    };
    for (IoRequest& request : requests) start(request);
    while (under_way > 0) {
      IoRequest& request = queue.finish();
      --under_way;
      if (request.error != 0 || request.done < request.data.size()) code = request.error != 0 ? request.error : EIO;
      start(request);
    }
    if (code != 0) throw resource_error(errno_text(code));
    return started;
  }

  const fs::path& directory_;
  std::uint64_t size_;
  bool timed_ = false;
  AlignedBuffer memory_{kRequest * IoQueue::kDepth};
};

std::string described(const std::vector<Rate>& rates) {
  std::string text;
  for (const Rate& rate : rates) {
    if (!text.empty()) text += ", ";
    text += rate.refusal.empty() ? fmt::format("{} {:.2g} GB/s", name_of(rate.access), rate.bytes_per_second / 1e9)
                                 : fmt::format("no {} ({})", name_of(rate.access), rate.refusal);
  }
  return text;
}

}  // namespace

ProbedAccess probe_access(const fs::path& directory, std::uint64_t disk_bytes) {
  const std::uint64_t most = disk_bytes / kBlock * kBlock;
  if (most < kLeast) return {DiskAccess::buffered, "not measured: the disk budget leaves no room for it"};
  Probe probe(directory, most);
  std::vector<Rate> rates;
  for (const DiskAccess access : {DiskAccess::direct, DiskAccess::uring, DiskAccess::buffered}) {
    rates.push_back(probe.measure(access));
  }
  std::stable_sort(rates.begin(), rates.end(),
                   [](const Rate& a, const Rate& b) { return a.bytes_per_second > b.bytes_per_second; });
  const auto buffered =
      std::find_if(rates.begin(), rates.end(), [](const Rate& rate) { return rate.access == DiskAccess::buffered; });
  const bool other = rates.front().bytes_per_second > kMargin * buffered->bytes_per_second;
  return {other ? rates.front().access : DiskAccess::buffered, described(rates)};
}

DiskAccess AccessChoice::get() {
  const std::lock_guard lock(mutex_);
  if (!made_) {
    made_ = wish_ == DiskAccess::automatic ? probe_access(directory_, disk_bytes_) : ProbedAccess{wish_, "asked for"};
  }
  return made_->access;
}

std::optional<ProbedAccess> AccessChoice::made() const {
  const std::lock_guard lock(mutex_);
  return made_;
}

}  // namespace detent::store
