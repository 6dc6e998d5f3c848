#include "cuda/sample_batches.h"

#include <algorithm>

namespace detent::cuda {

SampleBatches::SampleBatches(solve::LayerSamples& samples, const solve::LayerGeometry& geometry,
                             const FinetuneConfig& config, std::size_t threads, bool from_disk)
    : samples_(samples),
      geometry_(geometry),
      config_(config),
      threads_(threads),
      from_disk_(from_disk && config.drop_ratio >= 1),
      order_(samples.count(), config.seed) {}

SampleBatch SampleBatches::load(std::size_t iteration) {
  const std::size_t size = std::max<std::size_t>(config_.batch_size, 1);
  SampleBatch batch;
  for (std::size_t b = 0; b < size; ++b) batch.push_back(draw(static_cast<std::uint64_t>(iteration) * size + b));
  prefetch(static_cast<std::uint64_t>(iteration + 1) * size);
  return batch;
}

// As many samples as there are workers, from this turn on.
void SampleBatches::prefetch(std::uint64_t turn) {
  const std::uint64_t end =
      static_cast<std::uint64_t>(config_.num_iterations) * std::max<std::size_t>(config_.batch_size, 1);
  const auto coming = order_.coming(turn, end, config_.num_workers, [&](std::size_t index) {
    return from_disk_ && samples_.resting(index).has_value();
  });
  if (!coming.empty()) samples_.prefetch(coming);
}

Drawn SampleBatches::draw(std::uint64_t turn) {
  Drawn drawn;
  const std::size_t index = order_.at(turn);
  if (from_disk_) drawn.resting = samples_.resting(index);
  if (drawn.resting && std::none_of(drawn.resting->parts.begin(), drawn.resting->parts.begin() + 2,
                                    [](const auto& part) { return part.narrowed; })) {
    drawn.positions = drawn.resting->parts[1].size / sizeof(float) / static_cast<std::size_t>(geometry_.outputs);
    return drawn;
  }
  drawn.resting.reset();
  drawn.sample = samples_.get(index);
  drawn.positions = drawn.sample.target.size() / static_cast<std::size_t>(geometry_.outputs);
  if (config_.drop_ratio < 1) drawn.mixed = solve::mixed_inputs(drawn.sample, config_, turn, threads_);
  return drawn;
}

}  // namespace detent::cuda
