// Records on their way from disk, read by a thread of its own, several requests at a time.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "detent/error.h"
#include "store/buffer_pool.h"
#include "store/io_queue.h"
#include "store/lane_file.h"
#include "store/payload_hash.h"
#include "store/record_format.h"

namespace detent::store {

struct ReadJob {
  std::size_t sample = 0;
  std::shared_ptr<LaneFile> file;
  Extent extent;
  std::promise<std::optional<Record>> result;  // nullopt: damaged, or there is a failure
  std::shared_ptr<const Error> failure;
  std::atomic<bool> dropped = false;  // nobody waits for it
  Charge charge;                      // of what is read ahead; the spool's own

  // The reader's own.
  std::shared_ptr<const AlignedBuffer> buffer;
  std::uint64_t started = 0;  // bytes asked for
  std::uint64_t hashed = 0;   // bytes that came, without a gap, and went into the hash
  std::vector<bool> arrived;  // pieces
  std::size_t in_flight = 0;  // pieces
  int error = 0;
  bool cut = false;  // the file ends within it
  std::optional<PayloadHash> hash;
};

class Reader {
 public:
  Reader(std::function<DiskAccess()> access, BufferPool& buffers);
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader();

  /// The result comes through the job's promise. An urgent one goes before those that wait.
  void push(std::shared_ptr<ReadJob> job, bool urgent);
  /// A job that waits goes before the others.
  void hurry(const std::shared_ptr<ReadJob>& job);
  std::uint64_t bytes_read() const noexcept { return bytes_read_; }

 private:
  struct Piece {
    std::shared_ptr<ReadJob> job;
    std::size_t index = 0;
    IoRequest request;
  };

  void run();
  bool wait_for_work();
  void start_some();
  bool begin(const std::shared_ptr<ReadJob>& job);
  void finish_one();
  void note_failure(ReadJob& job) const noexcept;
  static void hash_arrived(ReadJob& job);
  void complete(ReadJob& job);

  const std::function<DiskAccess()> access_choice_;
  BufferPool& buffers_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<ReadJob>> jobs_;
  bool stopping_ = false;
  std::atomic<std::uint64_t> bytes_read_ = 0;

  // The thread's own.
  DiskAccess access_ = DiskAccess::automatic;
  std::unique_ptr<IoQueue> queue_;
  std::vector<Piece> pieces_;
  std::vector<Piece*> free_;
  const std::shared_ptr<const Error> no_memory_;  // made while there is some
  std::shared_ptr<ReadJob> current_;              // not all of it is asked for yet

  std::thread thread_;
};

}  // namespace detent::store
