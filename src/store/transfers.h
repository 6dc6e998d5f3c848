// The threads that read and write records, and the order in which records are read ahead.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "detent/error.h"
#include "store/buffers.h"
#include "store/io_queue.h"
#include "store/lane_file.h"

namespace detent::store {

// The order in which records will be asked for, and how far ahead of that reading may go.

/// A walk over samples `first` to `end`-1, and for each over `lanes`. What was asked for, and all before it, is behind.
class PrefetchOrder {
 public:
  using Place = std::pair<std::size_t, std::size_t>;  // lane, sample

  PrefetchOrder() = default;
  PrefetchOrder(std::vector<std::size_t> lanes, std::size_t first, std::size_t end);

  /// The next record, when it belongs to the `ahead` samples that follow the latest that was asked for.
  std::optional<Place> next(std::size_t ahead) const;
  /// The next one is on its way, or there is nothing to read for it.
  void advance();

  void asked_for(Place place);
  /// Whether the record still lies ahead.
  bool holds(Place place) const;

 private:
  std::optional<std::size_t> index_of(std::size_t lane) const;

  std::vector<std::size_t> lanes_;
  std::size_t sample_ = 0;  // of the next
  std::size_t lane_ = 0;    // of the next: its index in lanes_
  std::size_t end_ = 0;
  std::size_t behind_ = 0;  // samples before this one were asked for
};

/// Records on their way from disk, read by a thread of its own, several requests at a time.
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

/// Records on their way to disk, written by a thread of its own.
struct WriteJob {
  std::size_t lane = 0;
  std::size_t sample = 0;
  std::shared_ptr<LaneFile> file;
  Record record;
  RecordLayout layout;
  std::atomic<bool> dropped = false;  // nobody needs it any more
  Extent extent;                      // where it went, once it is written
  bool failed = false;
  std::vector<Extent> replaced;  // earlier records of the sample, to be given back when this one is written

  // The writer's own.
  std::size_t chunks = 0;  // that hold a part of it and are not on disk yet
  bool copied = false;     // into chunks, as a whole
  Charge charge;
};

class Writer {
 public:
  struct Options {
    std::uint64_t buffer_bytes = 0;  // for waiting records and chunks on their way
    std::function<DiskAccess()> access;
    /// Called when a job has come to its end; not under a lock.
    std::function<void(const std::shared_ptr<WriteJob>&)> done;
  };
  Writer(Options options, Gauge& memory);
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  /// Writes what is left.
  ~Writer();

  /// Waits until there is room; a job larger than all the room is taken when no other waits. Throws what an earlier
  /// write has met.
  void push(std::shared_ptr<WriteJob> job);
  /// Waits until all is written. Throws what a write has met.
  void drain();
  void rethrow() const;
  std::uint64_t bytes_written() const noexcept { return bytes_written_; }

 private:
  // A piece of a file that goes to disk with one request: what records put into the buffer, or a part of a large array
  // where it is.
  struct Chunk {
    AlignedBuffer buffer;
    std::size_t filled = 0;
    std::uint64_t offset = 0;
    std::shared_ptr<LaneFile> file;
    std::vector<std::shared_ptr<WriteJob>> jobs;
    IoRequest request;
  };

  void run();
  std::shared_ptr<WriteJob> next();
  void write(const std::shared_ptr<WriteJob>& job);
  void copy_payload(const std::shared_ptr<WriteJob>& job, PayloadHash& hash);
  void copy(const std::shared_ptr<WriteJob>& job, std::span<const std::byte> bytes, std::size_t zeros,
            PayloadHash& hash);
  void prepare();
  void write_in_place(const std::shared_ptr<WriteJob>& job, std::span<const std::byte> bytes, PayloadHash& hash);
  std::size_t lendable(const data::Array& array) const;
  Chunk& take_chunk(const std::shared_ptr<WriteJob>& job, std::uint64_t offset, std::size_t needed);
  void open_chunk(const std::shared_ptr<WriteJob>& job, std::uint64_t offset, std::size_t needed);
  void close_chunk(const WriteJob& job);
  void submit(Chunk*& chunk);
  void send(Chunk& chunk, std::span<std::byte> data);
  void finish_one();
  void complete(const std::shared_ptr<WriteJob>& job);
  void fail(std::exception_ptr failure);
  bool failed() const;

  const Options options_;
  Gauge& memory_;
  const std::size_t chunk_size_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;  // the thread: there is something to do
  std::condition_variable room_;  // the others: a job has come to its end
  std::deque<std::shared_ptr<WriteJob>> jobs_;
  std::size_t unfinished_ = 0;
  std::uint64_t waiting_bytes_ = 0;
  std::exception_ptr failure_;
  const std::exception_ptr no_memory_;  // made while there is some
  bool stopping_ = false;
  std::atomic<std::uint64_t> bytes_written_ = 0;

  // The thread's own.
  DiskAccess access_ = DiskAccess::automatic;
  Charge staging_;
  std::vector<Chunk> chunks_;
  std::vector<Chunk*> free_;
  Chunk* current_ = nullptr;    // being filled
  Chunk* held_ = nullptr;       // full, but for the header of the record that is being copied
  std::uint64_t position_ = 0;  // in the file, of what is copied next
  std::size_t in_flight_ = 0;
  std::unique_ptr<IoQueue> queue_;

  std::thread thread_;
};

}  // namespace detent::store
