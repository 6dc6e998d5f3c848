#include "store/prefetch_order.h"

#include <algorithm>

namespace detent::store {

PrefetchOrder::PrefetchOrder(std::vector<std::size_t> lanes, std::size_t first, std::size_t end)
    : lanes_(std::move(lanes)), sample_(first), end_(lanes_.empty() ? first : end), behind_(first) {}

std::optional<PrefetchOrder::Place> PrefetchOrder::next(std::size_t ahead) const {
  if (ahead == 0 || sample_ >= end_) return std::nullopt;
  if (sample_ >= behind_ && sample_ - behind_ >= ahead) return std::nullopt;
  return Place{lanes_[lane_], sample_};
}

void PrefetchOrder::advance() {
  if (++lane_ < lanes_.size()) return;
  lane_ = 0;
  ++sample_;
}

void PrefetchOrder::asked_for(Place place) {
  const auto [lane, sample] = place;
  const auto index = index_of(lane);
  if (!index || sample >= end_) return;
  behind_ = std::max(behind_, sample + 1);
  if (std::pair(sample, *index) < std::pair(sample_, lane_)) return;
  sample_ = sample;
  lane_ = *index;
  advance();
}

bool PrefetchOrder::holds(Place place) const {
  const auto index = index_of(place.first);
  return index && place.second < end_ && std::pair(place.second, *index) >= std::pair(sample_, lane_);
}

std::optional<std::size_t> PrefetchOrder::index_of(std::size_t lane) const {
  const auto found = std::find(lanes_.begin(), lanes_.end(), lane);
  if (found == lanes_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - lanes_.begin());
}

}  // namespace detent::store
