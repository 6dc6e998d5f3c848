// Records on their way out of the spool, and reading ahead.
#include "base/error.h"
#include "store/spool_impl.h"

namespace detent::store {

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
      return from_stored(record ? *record : job->record);
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

}  // namespace detent::store
