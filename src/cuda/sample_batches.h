// A layer's samples as mini-batches of whole samples, which convolutions take as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "detent/config.h"
#include "solve/layers/geometry.h"
#include "solve/layers/sample_order.h"
#include "solve/layers/samples.h"

namespace detent::cuda {

/// One sample of a mini-batch, its input mixed of both branches if that is asked for.
struct Drawn {
  std::optional<store::RecordOnDisk> resting;  // where it is at rest; else `sample` has it
  solve::SampleRef sample;
  std::vector<float> mixed;
  std::size_t positions = 0;

  const solve::Shape& shape() const { return resting ? resting->parts[0].shape : sample.input_shape; }
  const float* input() const { return mixed.empty() ? sample.input.data() : mixed.data(); }
};

using SampleBatch = std::vector<Drawn>;

/// Which sample comes when: all of them in a random order, then all in another. Both the order and the mix follow from
/// config.seed.
class SampleBatches {
 public:
  /// All must outlive this.
  /// `from_disk`: samples that rest on disk as they were put are left there.
  SampleBatches(solve::LayerSamples& samples, const solve::LayerGeometry& geometry, const FinetuneConfig& config,
                std::size_t threads, bool from_disk);

  SampleBatch load(std::size_t iteration);

 private:
  void prefetch(std::uint64_t turn);
  Drawn draw(std::uint64_t turn);

  solve::LayerSamples& samples_;
  const solve::LayerGeometry& geometry_;
  const FinetuneConfig& config_;
  std::size_t threads_;
  bool from_disk_;
  solve::SampleOrder order_;
};

}  // namespace detent::cuda
