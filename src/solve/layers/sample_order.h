// What mini-batches of any kind draw at random, all of it from config.seed: the same on every machine.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "detent/config.h"
#include "solve/layers/samples.h"

namespace detent::solve {

/// Which sample comes when: all of them in a random order, then all in another.
class SampleOrder {
 public:
  SampleOrder(std::size_t samples, std::uint64_t seed) : seed_(seed), order_(samples) {}

  /// The sample at a turn of the sequence of all turns. Positions may come in any order; near ones are cheaper.
  std::size_t at(std::uint64_t turn);
  /// Up to `most` different samples of the turns [turn, end) that `is_at_hand` is not true of, for reading ahead.
  template <class IsAtHand>
  std::vector<std::size_t> coming(std::uint64_t turn, std::uint64_t end, std::size_t most, const IsAtHand& is_at_hand) {
    std::vector<std::size_t> coming;
    for (std::uint64_t p = turn; p < std::min(end, turn + order_.size()) && coming.size() < most; ++p) {
      const std::size_t index = at(p);
      const bool known = std::find(coming.begin(), coming.end(), index) != coming.end();
      if (!known && !is_at_hand(index)) coming.push_back(index);
    }
    return coming;
  }

 private:
  std::uint64_t seed_;
  std::uint64_t round_ = ~std::uint64_t{0};
  std::vector<std::size_t> order_;  // of that round
};

/// The inputs of a sample at its turn: each element of the quantized branch with probability config.drop_ratio, else of
/// the float branch. Threads do not change the result.
std::vector<float> mixed_inputs(const SampleRef& sample, const FinetuneConfig& config, std::uint64_t turn,
                                std::size_t threads);

}  // namespace detent::solve
