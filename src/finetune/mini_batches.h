// A layer's samples as the mini-batches that its solver goes through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "detent/config.h"
#include "finetune/geometry.h"
#include "finetune/sample_order.h"
#include "finetune/samples.h"

namespace detent::finetune {

/// What one step looks at: columns of several samples.
struct MiniBatch {
  std::size_t columns = 0;
  bool by_column = false;      // as products have them
  std::vector<float> inputs;   // [groups · fan_in, columns], or by column: [columns, fan_in]
  std::vector<float> targets;  // [outputs, columns]
};

/// Columns that a step draws for each of its config.batch_size samples, or all where a sample has no more. The columns
/// of one sample say much the same: with two to eight times as many a step is dearer and the end hardly better.
inline constexpr std::size_t kColumnsOfSample = 16;

/// Bytes that mini-batches are made ready in, unless a single one takes more; and of samples that stay at hand.
inline constexpr std::size_t kBatchBytes = std::size_t{16} << 20;

/// One column of each of min(most, columns) equal parts, in a random order that follows from seed and `turn`.
std::vector<std::size_t> draw_columns(std::size_t columns, std::size_t most, std::uint64_t seed, std::uint64_t turn);

/// How many mini-batches of samples of this shape are made ready together.
std::size_t batches_together(const LayerGeometry& geometry, const Shape& input_shape, std::size_t samples,
                             const FinetuneConfig& config);

/// Which columns come when. Samples come all in a random order, then all in another; each time a sample comes, columns
/// are drawn from it, spread over its positions. What is drawn from as many samples as fit together is dealt out to as
/// many mini-batches, so that each holds a little of all of them. Order, columns and the mix of both branches' inputs
/// follow from config.seed and the iteration's number.
class MiniBatches {
 public:
  /// All must outlive this.
  MiniBatches(LayerSamples& samples, const LayerGeometry& geometry, const FinetuneConfig& config, std::size_t threads);

  /// The mini-batches of iteration `first` and of some after it, but not of `end`. They stay until the next call.
  std::span<const MiniBatch> load(std::size_t first, std::size_t end);

 private:
  /// A sample at one of its turns: columns, and the mini-batch that each goes to.
  struct Turn {
    std::uint64_t position = 0;  // in the sequence of all turns
    std::vector<std::size_t> columns;
    std::vector<std::size_t> batches;
  };

  void make(std::size_t set);
  Turn turn(std::uint64_t position, std::size_t columns, std::size_t& dealt) const;
  void fill(const SampleRef& sample, const Turn& turn, std::vector<std::size_t>& used);
  void announce(std::uint64_t position);
  const SampleRef& sample(std::size_t index);
  std::size_t columns_of(std::size_t index);

  LayerSamples& samples_;
  const LayerGeometry& geometry_;
  const FinetuneConfig& config_;
  std::size_t threads_;
  std::size_t size_;      // samples of a mini-batch
  std::size_t together_;  // mini-batches of a set
  std::size_t set_ = ~std::size_t{0};
  std::vector<MiniBatch> batches_;  // of that set
  SampleOrder order_;
  std::vector<std::optional<std::size_t>> columns_;  // of each sample, as soon as it has been seen
  std::map<std::size_t, SampleRef> held_;
  std::size_t bytes_ = 0;  // of these
};

}  // namespace detent::finetune
