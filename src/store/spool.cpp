#include "store/spool.h"

#include <fmt/format.h>

#include "base/error.h"
#include "store/spool_impl.h"

namespace detent::store {

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

}  // namespace detent::store
