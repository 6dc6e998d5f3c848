#include "solve/sweep/stored_samples.h"

#include <memory>
#include <utility>

#include "base/error.h"
#include "data/floats.h"

namespace detent::solve {

StoredSamples::StoredSamples(store::Spool& spool, const std::string& name) : spool_(spool), lane_(spool.open(name)) {}

StoredSamples::~StoredSamples() {
  ahead_.clear();  // waits until they are read
  spool_.close(lane_);
}

void StoredSamples::add(store::Record record) { spool_.put(lane_, count_++, std::move(record)); }

SampleRef StoredSamples::get(std::size_t i) {
  auto record = take(i);
  if (!record)
    throw resource_error("a spooled activation was damaged on disk", "run again, or choose another --work-dir");
  const auto held = std::make_shared<store::Record>(std::move(*record));
  const auto& arrays = *held;
  return {arrays[0].shape, data::floats(arrays[0]),
          arrays.size() > 2 ? data::floats(arrays[2]) : std::span<const float>(), data::floats(arrays[1]), held};
}

std::optional<store::RecordOnDisk> StoredSamples::resting(std::size_t i) const { return spool_.resting(lane_, i); }

void StoredSamples::prefetch(std::span<const std::size_t> coming) {
  for (const std::size_t i : coming) {
    if (ahead_.size() >= coming.size() || ahead_.contains(i)) continue;
    ahead_.emplace(i, std::async(std::launch::async, [this, i] { return spool_.get(lane_, i); }));
  }
}

std::optional<store::Record> StoredSamples::take(std::size_t i) {
  const auto found = ahead_.find(i);
  if (found == ahead_.end()) return spool_.get(lane_, i);
  auto reading = std::move(found->second);
  ahead_.erase(found);
  return reading.get();
}

}  // namespace detent::solve
