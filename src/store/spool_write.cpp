// Records on their way into the spool.
#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"
#include "base/error.h"
#include "store/spool_impl.h"

namespace detent::store {

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

bool Spool::Impl::keep_in_memory(LaneIndex& index, Lane lane, std::size_t sample, StoredRecord& record) {
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
  index.entries[sample].record = std::make_shared<const StoredRecord>(std::move(record));
  leftovers.free();
  return true;
}

std::shared_ptr<WriteJob> Spool::Impl::start_writing(LaneIndex& index, Lane lane, std::size_t sample,
                                                     StoredRecord record) {
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
  StoredRecord stored = to_stored(std::move(record), options.half_precision);
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
