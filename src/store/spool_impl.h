// The state behind Spool: what writing (spool_write.cpp) and reading (spool_read.cpp) share.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/prefetch_order.h"
#include "store/probe.h"
#include "store/reader.h"
#include "store/spool.h"
#include "store/writer.h"

namespace detent::store {

/// A record is in memory, queued to be written, or in the file of its lane.
struct Entry {
  std::shared_ptr<const StoredRecord> record;
  std::shared_ptr<WriteJob> job;
  Extent extent;

  bool on_disk() const { return !record && !job; }
};

struct LaneIndex {
  std::string name;
  std::shared_ptr<LaneFile> file;
  std::unordered_map<std::size_t, Entry> entries;
};

struct ReadAhead {
  std::shared_ptr<ReadJob> job;
  std::future<std::optional<Record>> result;
};

/// Adds the time from its construction to its destruction.
class Wait {
 public:
  explicit Wait(std::atomic<std::int64_t>& nanoseconds) : nanoseconds_(nanoseconds) {}
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  ~Wait() { nanoseconds_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  std::atomic<std::int64_t>& nanoseconds_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Disk space to free once the lock has been released.
struct FreedExtents {
  std::shared_ptr<LaneFile> file;
  std::vector<Extent> extents;

  void free() const {
    for (const Extent& extent : extents) file->free(extent);
  }
};

struct Spool::Impl {
  using Place = PrefetchOrder::Place;

  explicit Impl(SpoolOptions given)
      : options(std::move(given)),
        budget(options.disk_bytes),
        access(options.directory, options.access, options.disk_bytes / 4),
        writer({options.buffer_bytes / 2, [this] { return access.get(); },
                [this](const std::shared_ptr<WriteJob>& job) { written(job); }},
               memory),
        reader([this] { return access.get(); }, buffers) {}

  /// Both need the lock, and throw internal for a lane that is not open.
  LaneIndex& index_of(Lane lane);
  Entry* find(Lane lane, std::size_t sample);

  Lane open(const std::string& name);
  void put(Lane lane, std::size_t sample, Record record);
  bool keep_in_memory(LaneIndex& index, Lane lane, std::size_t sample, StoredRecord& record);
  std::shared_ptr<WriteJob> start_writing(LaneIndex& index, Lane lane, std::size_t sample, StoredRecord record);
  void forget(LaneIndex& index, Lane lane, std::size_t sample, std::vector<Extent>& leftovers);
  void written(const std::shared_ptr<WriteJob>& job);
  std::optional<Record> get(Lane lane, std::size_t sample);
  ReadAhead ask_for(LaneIndex& index, Place place, const Extent& extent);
  bool is_damaged(Place place, const ReadJob& job);
  void read_ahead();
  void drop_ahead(Place place);

  const SpoolOptions options;
  DiskBudget budget;
  AccessChoice access;
  Gauge memory;
  Gauge resident{&memory};
  Gauge ahead_bytes{&memory};
  BufferPool buffers{options.buffer_bytes / 2, ahead_bytes, memory};
  std::atomic<std::int64_t> write_wait = 0;
  std::atomic<std::int64_t> read_wait = 0;

  mutable std::mutex mutex;
  std::vector<LaneIndex> lanes;  // closed ones have no file
  PrefetchOrder announcement;
  std::map<Place, ReadAhead> ahead;
  std::uint64_t damaged = 0;

  Writer writer;  // these two use all of the above from their threads
  Reader reader;
};

}  // namespace detent::store
