// A layer's samples as the mini-batches that its solver goes through.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "detent/config.h"
#include "finetune/geometry.h"
#include "finetune/samples.h"

namespace detent::finetune {

/// One sample of a mini-batch, its input mixed of both branches if that is asked for.
struct Drawn {
  SampleRef sample;
  std::vector<float> mixed;
  std::size_t columns = 0;

  /// Where they were asked for: the columns of the input, [fan_in, columns], or as they come, [columns, fan_in], of a
  /// product; and the targets [outputs, columns].
  std::vector<float> gathered;
  std::vector<float> targets;

  const float* input() const { return mixed.empty() ? sample.input.data() : mixed.data(); }
};

using MiniBatch = std::vector<std::shared_ptr<const Drawn>>;

/// Which sample comes when: all of them in a random order, then all in another. Both the order and the mix follow from
/// config.seed.
class MiniBatches {
 public:
  /// `gather`: columns are made ready.
  MiniBatches(LayerSamples& samples, const LayerGeometry& geometry, const FinetuneConfig& config, std::size_t threads,
              bool gather);

  /// The mini-batches of iteration `first` and of some after it, but not of `end`: as many as a few MiB hold.
  std::vector<MiniBatch> load(std::size_t first, std::size_t end);

 private:
  void announce(std::uint64_t position);
  std::size_t sample_at(std::uint64_t position);
  void shuffle(std::uint64_t round);
  std::shared_ptr<const Drawn> draw(std::uint64_t position);
  void mix(Drawn& drawn, std::uint64_t position) const;
  void gather(Drawn& drawn) const;

  LayerSamples& samples_;
  const LayerGeometry& geometry_;
  const FinetuneConfig& config_;
  std::size_t threads_;
  bool gather_;
  std::uint64_t round_ = ~std::uint64_t{0};
  std::vector<std::size_t> order_;
  std::map<std::uint64_t, std::shared_ptr<const Drawn>> drawn_;  // by sample, or by position where inputs are mixed
  std::size_t bytes_ = 0;                                        // of these
};

/// Bytes that mini-batches are kept ready in, unless a single one takes more.
inline constexpr std::size_t kBatchBytes = std::size_t{16} << 20;

/// Whether the columns of a mini-batch of such inputs are worth to be made ready: products with them are faster than
/// convolutions, as long as they stay in reach of the cache.
bool has_columns(const LayerGeometry& geometry, const Shape& input_shape, std::size_t batch_size);

}  // namespace detent::finetune
