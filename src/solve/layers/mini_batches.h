// A layer's samples as mini-batches of positions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "detent/config.h"
#include "solve/layers/problem.h"
#include "store/spool.h"

namespace detent::solve {

/// One sample of a layer. The values stay as they are while `hold` is alive.
struct SampleRef {
  Shape input_shape;
  std::span<const float> input;        // of the quantized branch
  std::span<const float> float_input;  // of the float branch; needed only where config.drop_ratio is below 1
  std::span<const float> target;       // what the output is to be
  std::shared_ptr<const void> hold;
};

/// Called by one thread at a time.
class LayerSamples {
 public:
  virtual ~LayerSamples() = default;
  virtual std::size_t count() const = 0;
  virtual SampleRef get(std::size_t i) = 0;
  /// Where the sample rests on disk: input, target and, if there is one, the float branch's input, in this order;
  /// nullopt when it does not, and only get() has it. A device can then read it past the host's memory
  /// (store::DeviceReader).
  virtual std::optional<store::RecordOnDisk> resting(std::size_t) const { return std::nullopt; }
  /// Tells which samples get() will be called for next, so that they can be read ahead.
  virtual void prefetch(std::span<const std::size_t>) {}
};

// What mini-batches of any kind draw at random, all of it from config.seed: the same on every machine.

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

/// Inputs and targets of one optimizer step: positions of several samples.
struct MiniBatch {
  std::size_t positions = 0;
  bool by_position = false;    // as products have them
  std::vector<float> inputs;   // [groups · fan_in, positions], or by position: [positions, fan_in]
  std::vector<float> targets;  // [outputs, positions]
};

/// Positions that a step draws for each of its config.batch_size samples, or all where a sample has fewer. Positions of
/// one sample are similar: with two to eight times as many, steps cost more and the result is hardly better.
inline constexpr std::size_t kPositionsOfSample = 16;

/// Memory for prepared mini-batches, unless a single one takes more; and for samples that are kept.
inline constexpr std::size_t kBatchBytes = std::size_t{16} << 20;

/// One position of each of min(most, positions) equal parts, in a random order that follows from seed and `turn`.
std::vector<std::size_t> draw_positions(std::size_t positions, std::size_t most, std::uint64_t seed,
                                        std::uint64_t turn);

/// Samples come in a random order, a new one each time all have come; each time positions are drawn from a sample,
/// spread over it. Positions of the samples of several mini-batches are dealt out to these in turn, so that each
/// mini-batch has some of every sample. Order, positions and the mix of both
/// branches' inputs follow from config.seed and the iteration's number.
class MiniBatches {
 public:
  /// All must outlive this.
  MiniBatches(LayerSamples& samples, const LayerGeometry& geometry, const FinetuneConfig& config, std::size_t threads);

  /// The mini-batches of iteration `first` and of some after it, but not of `end`. They stay until the next call.
  std::span<const MiniBatch> load(std::size_t first, std::size_t end);

 private:
  /// A sample at one of its turns: positions, and the mini-batch that each goes to.
  struct Turn {
    std::uint64_t number = 0;  // in the sequence of all turns
    std::vector<std::size_t> positions;
    std::vector<std::size_t> batches;
  };

  void make(std::size_t set);
  Turn turn(std::uint64_t number, std::size_t positions, std::size_t& dealt) const;
  void fill(const SampleRef& sample, const Turn& turn, std::vector<std::size_t>& used);
  void prefetch(std::uint64_t number);
  const SampleRef& sample(std::size_t index);
  std::size_t positions_of(std::size_t index);

  LayerSamples& samples_;
  const LayerGeometry& geometry_;
  const FinetuneConfig& config_;
  std::size_t threads_;
  std::size_t size_;      // samples of a mini-batch
  std::size_t together_;  // mini-batches of a set
  std::size_t set_ = ~std::size_t{0};
  std::vector<MiniBatch> batches_;  // of that set
  SampleOrder order_;
  std::vector<std::optional<std::size_t>> positions_;  // of each sample, once known
  std::map<std::size_t, SampleRef> held_;
  std::size_t bytes_ = 0;  // of these
};

}  // namespace detent::solve
