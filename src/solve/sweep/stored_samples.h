// A layer's samples in the spool.
#pragma once

#include <cstddef>
#include <future>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "solve/layers/samples.h"
#include "store/spool.h"

namespace detent::solve {

/// Inputs and targets of one layer for some of the samples, in a lane of the spool that is closed at the end.
class StoredSamples final : public LayerSamples {
 public:
  /// `name` of the lane.
  StoredSamples(store::Spool& spool, const std::string& name);
  ~StoredSamples() override;
  StoredSamples(const StoredSamples&) = delete;
  StoredSamples& operator=(const StoredSamples&) = delete;

  /// Input, target, and the float branch's input where it is needed.
  void add(store::Record record);
  std::size_t count() const override { return count_; }
  SampleRef get(std::size_t i) override;
  std::optional<store::RecordOnDisk> resting(std::size_t i) const override;
  /// Begins to read those that are not being read yet, each on a thread of its own.
  void prefetch(std::span<const std::size_t> coming) override;

 private:
  std::optional<store::Record> take(std::size_t i);

  store::Spool& spool_;
  store::Spool::Lane lane_;
  std::size_t count_ = 0;
  std::map<std::size_t, std::future<std::optional<store::Record>>> ahead_;
};

}  // namespace detent::solve
