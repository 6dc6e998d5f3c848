#include "run/samples/sample_feed.h"

#include <utility>

#include "data/sample_inputs.h"
#include "run/files/model_fingerprint.h"

namespace detent::run {

Fingerprint SampleFeed::read(std::optional<std::size_t> count) {
  Fingerprint data;
  while (!count || origins_.size() < *count) {
    const auto sample = source_.next();
    if (!sample) break;
    data += fingerprint_of(*sample);
    origins_.push_back(sample->origin);
  }
  return data;
}

void SampleFeed::start_first(std::size_t skipped) {
  source_.rewind();
  for (next_ = 0; next_ < skipped; ++next_) source_.next();
  end_.reset();
}

void SampleFeed::start_later(std::size_t first, std::size_t end) {
  next_ = first;
  end_ = end;
}

std::optional<FedSample> SampleFeed::next() {
  if (end_) {
    if (next_ == *end_) return std::nullopt;
    const std::size_t number = next_++;
    return FedSample{number, origins_.at(number), std::nullopt};
  }
  const std::lock_guard lock(source_mutex_);
  auto sample = source_.next();
  if (!sample) return std::nullopt;
  if (origins_.size() == next_) origins_.push_back(sample->origin);
  std::string origin = sample->origin;
  return FedSample{next_++, std::move(origin), std::move(sample)};
}

std::vector<data::Array> SampleFeed::inputs_of(std::size_t number) {
  const std::lock_guard lock(source_mutex_);
  return data::sample_inputs(source_, number);
}

}  // namespace detent::run
