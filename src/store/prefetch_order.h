// The order in which records will be asked for, and how far ahead of that reading may go.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace detent::store {

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

}  // namespace detent::store
