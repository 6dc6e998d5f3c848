#include "cuda/sample_batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"

namespace detent::cuda {
namespace {

constexpr std::uint64_t kMixSeed = 0x6d69786572ULL;  // keeps the mix apart from the order
constexpr std::size_t kMixPiece = 1 << 14;           // elements that one thread mixes at a time

}  // namespace

SampleBatches::SampleBatches(finetune::LayerSamples& samples, const finetune::LayerGeometry& geometry,
                             const FinetuneConfig& config, std::size_t threads, bool from_disk)
    : samples_(samples),
      geometry_(geometry),
      config_(config),
      threads_(threads),
      from_disk_(from_disk && config.drop_ratio >= 1),
      order_(samples.count()) {}

SampleBatch SampleBatches::load(std::size_t iteration) {
  const std::size_t size = std::max<std::size_t>(config_.batch_size, 1);
  SampleBatch batch;
  for (std::size_t b = 0; b < size; ++b) batch.push_back(draw(static_cast<std::uint64_t>(iteration) * size + b));
  announce(static_cast<std::uint64_t>(iteration + 1) * size);
  return batch;
}

// As many samples as there are workers, from this position on.
void SampleBatches::announce(std::uint64_t position) {
  const std::uint64_t end =
      static_cast<std::uint64_t>(config_.num_iterations) * std::max<std::size_t>(config_.batch_size, 1);
  std::vector<std::size_t> coming;
  for (std::uint64_t p = position; p < std::min(end, position + order_.size()); ++p) {
    if (coming.size() == config_.num_workers) break;
    const std::size_t index = sample_at(p);
    const bool known = std::find(coming.begin(), coming.end(), index) != coming.end();
    if (!known && !(from_disk_ && samples_.resting(index))) coming.push_back(index);
  }
  if (!coming.empty()) samples_.announce(coming);
}

std::size_t SampleBatches::sample_at(std::uint64_t position) {
  const std::uint64_t round = position / order_.size();
  if (round != round_) shuffle(round);
  return order_[position % order_.size()];
}

void SampleBatches::shuffle(std::uint64_t round) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  for (std::size_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[below(i, random_at(config_.seed, round, i)[0])]);
  }
  round_ = round;
}

Drawn SampleBatches::draw(std::uint64_t position) {
  Drawn drawn;
  const std::size_t index = sample_at(position);
  if (from_disk_) drawn.resting = samples_.resting(index);
  if (drawn.resting && std::none_of(drawn.resting->parts.begin(), drawn.resting->parts.begin() + 2,
                                    [](const auto& part) { return part.narrowed; })) {
    drawn.columns = drawn.resting->parts[1].size / sizeof(float) / static_cast<std::size_t>(geometry_.outputs);
    return drawn;
  }
  drawn.resting.reset();
  drawn.sample = samples_.get(index);
  drawn.columns = drawn.sample.target.size() / static_cast<std::size_t>(geometry_.outputs);
  if (config_.drop_ratio < 1) mix(drawn, position);
  return drawn;
}

void SampleBatches::mix(Drawn& drawn, std::uint64_t position) const {
  const auto& quantized = drawn.sample.input;
  const auto& exact = drawn.sample.float_input;
  if (exact.size() != quantized.size()) throw internal_error("a mix of inputs needs those of the float model");
  const auto limit = static_cast<std::uint64_t>(std::max(config_.drop_ratio, 0.0) * 0x1p32);
  drawn.mixed.resize(quantized.size());
  parallel_for((quantized.size() + kMixPiece - 1) / kMixPiece, threads_, [&](std::size_t piece) {
    const std::size_t end = std::min((piece + 1) * kMixPiece, quantized.size());
    for (std::size_t i = piece * kMixPiece; i < end; i += 4) {
      const auto random = random_at(config_.seed ^ kMixSeed, position, i / 4);
      for (std::size_t k = 0; k < 4 && i + k < end; ++k) {
        drawn.mixed[i + k] = random[k] < limit ? quantized[i + k] : exact[i + k];
      }
    }
  });
}

}  // namespace detent::cuda
