// Samples that ranks share: each runs its own through the models, and what layers take of them comes to all.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <vector>

#include "shim/shared_work.h"
#include "store/spool.h"

namespace detent::solve {

/// The rank that runs a sample: each has as many as the others of those that are fitted to, and of those held back.
std::size_t runner_of(std::size_t sample, std::size_t ranks);

/// One pass over the samples, for layers that each take a record of every sample.
class SharedSamples {
 public:
  /// What a layer takes of a sample; nothing where the record stays with the rank that ran it.
  using Take = std::function<void(std::size_t layer, std::size_t sample, std::optional<store::Record> record)>;

  /// What is sent of a record, and taken: less than it may do.
  using Reduce = std::function<store::Record(std::size_t layer, std::size_t sample, store::Record record)>;

  /// `keeps_held_back`: whether records that are held back stay with the ranks that ran them.
  SharedSamples(store::Spool& spool, std::size_t layers, bool keeps_held_back, shim::Team team);
  ~SharedSamples();
  SharedSamples(const SharedSamples&) = delete;
  SharedSamples& operator=(const SharedSamples&) = delete;

  /// Of a sample that this rank runs.
  void put(std::size_t layer, std::size_t sample, store::Record record);
  /// Collective, once there are all records of so many samples: hands them out in the order of samples.
  void hand_out(std::size_t samples, const Reduce& reduce, const Take& take);

 private:
  using Queue = std::deque<store::Record>;

  bool travels(std::size_t sample) const;
  bool is_mine(std::size_t sample) const { return runner_of(sample, team_.size()) == team_.rank(); }
  store::Record take_own(std::size_t layer, std::size_t sample);
  void exchange_some(std::size_t samples, std::size_t most, const Reduce& reduce);

  store::Spool& spool_;
  store::Spool::Lane lane_;
  std::size_t layers_;
  bool keeps_held_back_;
  shim::Team team_;
  std::size_t sent_ = 0;       // of the numbers of records, counted over all ranks: those that this one has gone past
  std::vector<Queue> queues_;  // of each rank: what was exchanged and is still to be handed out
};

}  // namespace detent::solve
