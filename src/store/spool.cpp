#include "store/spool.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "store/io_queue.h"
#include "store/transfers.h"

namespace detent::store {

// The state behind Spool: what writing and reading share.

/// A record is in memory, queued to be written, or in the file of its lane.
struct Entry {
  std::shared_ptr<const Record> record;
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
  bool keep_in_memory(LaneIndex& index, Lane lane, std::size_t sample, Record& record);
  std::shared_ptr<WriteJob> start_writing(LaneIndex& index, Lane lane, std::size_t sample, Record record);
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

LaneIndex& Spool::Impl::index_of(Lane lane) {
  if (lane >= lanes.size() || !lanes[lane].file) throw internal_error(fmt::format("lane {} is not open", lane));
  return lanes[lane];
}

Entry* Spool::Impl::find(Lane lane, std::size_t sample) {
  LaneIndex& index = index_of(lane);
  const auto found = index.entries.find(sample);
  return found == index.entries.end() ? nullptr : &found->second;
}

Spool::Spool(SpoolOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
Spool::~Spool() = default;

Spool::Lane Spool::open(const std::string& name) { return impl_->open(name); }

bool Spool::holds(Lane lane, std::size_t sample) const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->find(lane, sample) != nullptr;
}

void Spool::put(Lane lane, std::size_t sample, Record record) { impl_->put(lane, sample, std::move(record)); }

std::optional<Record> Spool::get(Lane lane, std::size_t sample) { return impl_->get(lane, sample); }

std::optional<RecordOnDisk> Spool::resting(Lane lane, std::size_t sample) const {
  std::shared_ptr<LaneFile> file;
  Extent extent;
  {
    const std::lock_guard lock(impl_->mutex);
    const Entry* const entry = impl_->find(lane, sample);
    if (entry == nullptr || !entry->on_disk()) return std::nullopt;
    file = impl_->lanes[lane].file;
    extent = entry->extent;
  }
  return read_resting(file->path(), sample, extent);
}

void Spool::prefetch(std::vector<Lane> lanes, std::size_t first, std::size_t end) {
  const std::lock_guard lock(impl_->mutex);
  impl_->announcement = PrefetchOrder(std::move(lanes), first, end);
  std::vector<Impl::Place> gone;
  for (const auto& [place, job] : impl_->ahead) {
    if (!impl_->announcement.holds(place)) gone.push_back(place);
  }
  for (const Impl::Place& place : gone) impl_->drop_ahead(place);
  impl_->read_ahead();
}

void Spool::release(Lane lane, std::size_t sample) {
  FreedExtents leftovers;
  {
    const std::lock_guard lock(impl_->mutex);
    LaneIndex& index = impl_->index_of(lane);
    leftovers.file = index.file;
    impl_->forget(index, lane, sample, leftovers.extents);
  }
  leftovers.free();
}

bool Spool::in_memory(Lane lane, std::size_t sample) const {
  const std::lock_guard lock(impl_->mutex);
  const Entry* const entry = impl_->find(lane, sample);
  return entry != nullptr && entry->record;
}

void Spool::close(Lane lane) {
  const std::lock_guard lock(impl_->mutex);
  LaneIndex& index = impl_->index_of(lane);
  std::vector<Extent> with_the_file;
  while (!index.entries.empty()) impl_->forget(index, lane, index.entries.begin()->first, with_the_file);
  index.file->remove();
  index.file.reset();
}

void Spool::sync() {
  const Wait wait(impl_->write_wait);
  impl_->writer.drain();
  std::vector<std::shared_ptr<LaneFile>> files;
  {
    const std::lock_guard lock(impl_->mutex);
    for (const LaneIndex& index : impl_->lanes) {
      if (index.file) files.push_back(index.file);
    }
  }
  for (const auto& file : files) file->sync();
}

std::uint64_t Spool::damaged() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->damaged;
}

SpoolUse Spool::use() const {
  const auto seconds = [](const std::atomic<std::int64_t>& nanoseconds) {
    return static_cast<double>(nanoseconds) * 1e-9;
  };
  SpoolUse use;
  use.memory_peak = impl_->memory.peak();
  use.disk_peak = impl_->budget.peak();
  use.bytes_written = impl_->writer.bytes_written();
  use.bytes_read = impl_->reader.bytes_read();
  use.write_wait_seconds = seconds(impl_->write_wait);
  use.read_wait_seconds = seconds(impl_->read_wait);
  if (const auto made = impl_->access.made()) {
    use.access = made->access;
    use.access_reason = made->reason;
  }
  return use;
}

std::optional<Record> Spool::Impl::get(Lane lane, std::size_t sample) {
  writer.rethrow();
  for (;;) {
    std::unique_lock lock(mutex);
    announcement.asked_for({lane, sample});
    const Entry* const entry = find(lane, sample);
    if (entry == nullptr || !entry->on_disk()) read_ahead();
    if (entry == nullptr) return std::nullopt;
    if (!entry->on_disk()) {
      const auto record = entry->record;
      const auto job = entry->job;
      lock.unlock();
      return record ? *record : job->record;
    }
    ReadAhead asked = ask_for(index_of(lane), {lane, sample}, entry->extent);
    read_ahead();
    lock.unlock();
    const Wait wait(read_wait);
    std::optional<Record> record = asked.result.get();
    if (record) return record;
    if (const auto& failure = asked.job->failure) throw Error(failure->kind(), failure->what(), failure->hint());
    // Nothing right was read: the record is damaged, unless it was released or replaced meanwhile.
    if (is_damaged({lane, sample}, *asked.job)) return std::nullopt;
  }
}

// The read that is under way for this record, or a new one.
ReadAhead Spool::Impl::ask_for(LaneIndex& index, Place place, const Extent& extent) {
  if (const auto found = ahead.find(place); found != ahead.end()) {
    ReadAhead asked = std::move(found->second);
    ahead.erase(found);
    asked.job->charge.reset();  // from here on it is the caller's
    reader.hurry(asked.job);
    return asked;
  }
  ReadAhead asked{std::make_shared<ReadJob>(), {}};
  asked.job->sample = place.second;
  asked.job->file = index.file;
  asked.job->extent = extent;
  asked.result = asked.job->result.get_future();
  reader.push(asked.job, true);
  return asked;
}

bool Spool::Impl::is_damaged(Place place, const ReadJob& job) {
  FreedExtents leftovers{job.file, {}};
  {
    const std::lock_guard lock(mutex);
    LaneIndex& index = lanes[place.first];
    const Entry* const entry = index.file == job.file ? find(place.first, place.second) : nullptr;
    if (entry == nullptr || !entry->on_disk() || entry->extent.offset != job.extent.offset) return false;
    forget(index, place.first, place.second, leftovers.extents);
    ++damaged;
  }
  leftovers.free();
  return true;
}

// Starts reads as far ahead as options and buffers allow.
void Spool::Impl::read_ahead() {
  while (const auto place = announcement.next(options.prefetch)) {
    const auto [lane, sample] = *place;
    const Entry* const entry = lane < lanes.size() && lanes[lane].file ? find(lane, sample) : nullptr;
    if (entry != nullptr && entry->on_disk() && !ahead.contains(*place)) {
      const std::uint64_t taken = ahead_bytes.now();
      if (taken > 0 && taken + entry->extent.size > options.buffer_bytes / 2) return;
      ReadAhead asked{std::make_shared<ReadJob>(), {}};
      asked.job->sample = sample;
      asked.job->file = lanes[lane].file;
      asked.job->extent = entry->extent;
      buffers.make_room(entry->extent.size);
      asked.job->charge = Charge(ahead_bytes, entry->extent.size);
      asked.result = asked.job->result.get_future();
      reader.push(asked.job, false);
      ahead.emplace(*place, std::move(asked));
    }
    announcement.advance();
  }
}

void Spool::Impl::drop_ahead(Place place) {
  const auto found = ahead.find(place);
  if (found == ahead.end()) return;
  found->second.job->dropped = true;
  ahead.erase(found);
}

Spool::Lane Spool::Impl::open(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  if (name.empty() || !std::all_of(name.begin(), name.end(), allowed)) {
    throw internal_error(fmt::format("'{}' cannot be the name of a lane", name));
  }
  const std::lock_guard lock(mutex);
  for (Lane lane = 0; lane < lanes.size(); ++lane) {
    if (lanes[lane].file && lanes[lane].name == name) return lane;
  }
  LaneIndex index{name, std::make_shared<LaneFile>(options.directory / (name + ".lane"), budget), {}};
  LaneFile::Found found = index.file->recover();
  damaged += found.damaged;
  for (const RecordHeader& header : found.records) {
    index.file->charge_anyway(header.extent.size);
    Entry& entry = index.entries[header.sample];
    if (entry.extent.size > 0) index.file->free(entry.extent);  // an older one of the same sample
    entry.extent = header.extent;
  }
  lanes.push_back(std::move(index));
  return lanes.size() - 1;
}

// Takes an entry out of the index; what it had on disk is added to `leftovers`.
void Spool::Impl::forget(LaneIndex& index, Lane lane, std::size_t sample, std::vector<Extent>& leftovers) {
  const auto found = index.entries.find(sample);
  if (found == index.entries.end()) return;
  Entry& entry = found->second;
  if (entry.record) {
    resident.subtract(byte_count(*entry.record));
  } else if (entry.job) {
    entry.job->dropped = true;
    leftovers.insert(leftovers.end(), entry.job->replaced.begin(), entry.job->replaced.end());
    entry.job->replaced.clear();
  } else {
    leftovers.push_back(entry.extent);
    drop_ahead({lane, sample});
  }
  index.entries.erase(found);
}

bool Spool::Impl::keep_in_memory(LaneIndex& index, Lane lane, std::size_t sample, Record& record) {
  if (options.residency == Residency::disk) return false;
  const std::uint64_t bytes = byte_count(record);
  const Entry* const old = find(lane, sample);
  const std::uint64_t others = resident.now() - (old != nullptr && old->record ? byte_count(*old->record) : 0);
  if (others > options.memory_bytes || bytes > options.memory_bytes - others) {
    if (options.residency == Residency::memory_then_disk) return false;
    throw resource_error(fmt::format("intermediate tensors need {} of memory, {} more than the budget leaves for them",
                                     format_size(others + bytes), format_size(others + bytes - options.memory_bytes)),
                         "raise --memory-budget, or spool them to disk with --set memory-level=1 or 2");
  }
  FreedExtents leftovers{index.file, {}};
  forget(index, lane, sample, leftovers.extents);
  resident.add(bytes);
  index.entries[sample].record = std::make_shared<const Record>(std::move(record));
  leftovers.free();
  return true;
}

std::shared_ptr<WriteJob> Spool::Impl::start_writing(LaneIndex& index, Lane lane, std::size_t sample, Record record) {
  auto job = std::make_shared<WriteJob>();
  job->lane = lane;
  job->sample = sample;
  job->file = index.file;
  job->layout = layout_of(record);
  job->record = std::move(record);
  job->file->charge(job->layout.size());
  if (budget.over()) {
    for (const LaneIndex& each : lanes) {
      if (each.file) each.file->trim();
    }
  }
  forget(index, lane, sample, job->replaced);
  job->replaced.reserve(job->replaced.size() + 1);  // written() adds one, in a thread that has nobody to throw to
  index.entries[sample].job = job;
  return job;
}

void Spool::Impl::put(Lane lane, std::size_t sample, Record record) {
  writer.rethrow();
  Record stored = owned(std::move(record));
  std::shared_ptr<WriteJob> job;
  for (bool drained = false;; drained = true) {
    {
      const std::lock_guard lock(mutex);
      LaneIndex& index = index_of(lane);
      if (keep_in_memory(index, lane, sample, stored)) return;
      if (drained || budget.has_room(layout_of(stored).size())) {
        job = start_writing(index, lane, sample, std::move(stored));
        break;
      }
    }
    // What was released on its way to disk gives its share back when it has come there.
    const Wait wait(write_wait);
    writer.drain();
  }
  const Wait wait(write_wait);
  try {
    writer.push(job);
  } catch (...) {
    job->failed = true;
    written(job);
    throw;
  }
}

// Called when a job has come to its end, well or not.
void Spool::Impl::written(const std::shared_ptr<WriteJob>& job) {
  FreedExtents leftovers{job->file, {}};
  {
    const std::lock_guard lock(mutex);
    std::swap(leftovers.extents, job->replaced);
    LaneIndex& index = lanes[job->lane];
    const auto found = index.entries.find(job->sample);
    const bool wanted = found != index.entries.end() && found->second.job == job;
    if (wanted && job->failed) index.entries.erase(found);
    if (wanted && !job->failed) {
      found->second.extent = job->extent;
      found->second.job.reset();
    } else if (job->extent.size > 0) {
      leftovers.extents.push_back(job->extent);
    } else {
      job->file->give_back(job->layout.size());
    }
  }
  leftovers.free();
}

}  // namespace detent::store
