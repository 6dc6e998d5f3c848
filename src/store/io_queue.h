// Reads and writes of parts of files, several under way at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "store/spool.h"

namespace detent::store {

/// One read or write. It and its memory must stay where they are from start() until finish() gives it back.
struct IoRequest {
  int fd = -1;
  bool write = false;
  std::uint64_t offset = 0;
  std::span<std::byte> data;
  std::size_t done = 0;       // bytes moved: fewer than asked for at the end of a file or after an error
  int error = 0;              // errno
  IoRequest* next = nullptr;  // of a queue's own list
};

/// Requests that wait, first come first served. Takes no memory: threads that have nobody to throw to use it.
class RequestList {
 public:
  bool empty() const noexcept { return first_ == nullptr; }
  void push(IoRequest& request) noexcept {
    request.next = nullptr;
    (first_ == nullptr ? first_ : last_->next) = &request;
    last_ = &request;
  }
  /// There must be one.
  IoRequest& pop() noexcept { return *std::exchange(first_, first_->next); }

 private:
  IoRequest* first_ = nullptr;
  IoRequest* last_ = nullptr;
};

/// Belongs to one thread. Must not be destroyed while requests are under way.
class IoQueue {
 public:
  IoQueue() = default;
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;
  virtual ~IoQueue() = default;

  /// Not more than kDepth may be under way.
  virtual void start(IoRequest& request) = 0;
  /// Waits for one of those under way.
  virtual IoRequest& finish() = 0;

  static constexpr std::size_t kDepth = 8;
};

/// `access` is not automatic. Throws resource when the system refuses it.
std::unique_ptr<IoQueue> make_io_queue(DiskAccess access);

/// What `access` asks of open(): O_DIRECT or nothing.
int open_flags(DiskAccess access) noexcept;

/// "buffered", "direct" or "io_uring".
const char* name_of(DiskAccess access) noexcept;

/// Fails as the failpoint of this kind of request says: its errno, or 0.
int injected_error(const IoRequest& request) noexcept;

/// Null, with the reason in `refusal`, where io_uring cannot be used.
std::unique_ptr<IoQueue> make_uring_queue(std::string& refusal);

/// Which way of reading and writing files is the fastest in a directory.
struct ProbedAccess {
  DiskAccess access = DiskAccess::buffered;
  std::string reason;  // "io_uring 1.4 GB/s, direct 1.2 GB/s, buffered 0.6 GB/s"
};

/// Writes and reads back some MiB each way, in about a tenth of a second, in files that have no name. Takes
/// `disk_bytes` at most. Buffered access stays the choice unless another is faster by a tenth.
ProbedAccess probe_access(const std::filesystem::path& directory, std::uint64_t disk_bytes);

/// The access of a spool: the one asked for, or on first use the fastest.
class AccessChoice {
 public:
  AccessChoice(std::filesystem::path directory, DiskAccess wish, std::uint64_t disk_bytes)
      : directory_(std::move(directory)), wish_(wish), disk_bytes_(disk_bytes) {}

  /// The first call may measure.
  DiskAccess get();
  /// What get() chose; nullopt before.
  std::optional<ProbedAccess> made() const;

 private:
  const std::filesystem::path directory_;
  const DiskAccess wish_;
  const std::uint64_t disk_bytes_;
  mutable std::mutex mutex_;
  std::optional<ProbedAccess> made_;
};

}  // namespace detent::store
