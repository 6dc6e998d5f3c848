#include "solve/layers/mini_batches.h"

#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/numbers.h"
#include "base/parallel.h"

namespace detent::solve {
namespace {

constexpr std::uint64_t kPositionSeed = 0x636f6c756d6eULL;  // keeps the positions apart from order and mix
constexpr std::size_t kRowsToGather = 512;                  // patch rows that one thread copies at a time

std::size_t batch_size(const FinetuneConfig& config) { return std::max<std::size_t>(config.batch_size, 1); }

// How many mini-batches of samples of this shape are prepared together.
std::size_t batches_together(const LayerGeometry& geometry, const Shape& input_shape, std::size_t samples,
                             const FinetuneConfig& config) {
  const Patches patches(geometry, input_shape);
  const std::size_t positions = batch_size(config) * std::min(patches.positions(), kPositionsOfSample);
  const std::size_t bytes = sizeof(float) * positions * (patches.rows() + patches.outputs());
  const std::size_t all = (samples + batch_size(config) - 1) / batch_size(config);
  const std::size_t most = std::max<std::size_t>(std::min<std::size_t>(all, config.num_iterations), 1);
  return std::clamp<std::size_t>(kBatchBytes / std::max<std::size_t>(bytes, 1), 1, most);
}

}  // namespace

std::vector<std::size_t> draw_positions(std::size_t positions, std::size_t most, std::uint64_t seed,
                                        std::uint64_t turn) {
  const std::size_t count = std::min(positions, most);
  std::vector<std::size_t> drawn(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t first = i * positions / count;
    const std::size_t size = (i + 1) * positions / count - first;
    drawn[i] = first + scale_to_bound(size, random_at(seed ^ kPositionSeed, turn, i)[0]);
  }
  for (std::size_t i = count; i > 1; --i) {
    std::swap(drawn[i - 1], drawn[scale_to_bound(i, random_at(seed ^ kPositionSeed, turn, i - 1)[1])]);
  }
  return drawn;
}

MiniBatches::MiniBatches(LayerSamples& samples, const LayerGeometry& geometry, const FinetuneConfig& config,
                         std::size_t threads)
    : samples_(samples),
      geometry_(geometry),
      config_(config),
      threads_(threads),
      size_(batch_size(config)),
      together_(batches_together(geometry, samples.get(0).input_shape, samples.count(), config)),
      order_(samples.count(), config.seed),
      positions_(samples.count()) {}

std::span<const MiniBatch> MiniBatches::load(std::size_t first, std::size_t end) {
  const std::size_t set = first / together_;
  if (set != set_) make(set);
  const std::size_t begin = set * together_;
  return std::span(batches_).subspan(first - begin, std::min(end, begin + together_) - first);
}

void MiniBatches::make(std::size_t set) {
  set_ = set;
  const std::uint64_t begin = static_cast<std::uint64_t>(set) * together_ * size_;
  const std::uint64_t end = begin + together_ * size_;
  std::vector<Turn> turns;
  std::vector<std::size_t> sizes(together_);
  std::size_t dealt = 0;
  for (std::uint64_t p = begin; p < end; ++p) {
    turns.push_back(turn(p, positions_of(order_.at(p)), dealt));
    for (const std::size_t batch : turns.back().batches) ++sizes[batch];
  }
  batches_.resize(together_);
  for (std::size_t b = 0; b < together_; ++b) {
    batches_[b].positions = sizes[b];
    batches_[b].by_position = geometry_.kind == LayerKind::product;
    batches_[b].inputs.resize(sizes[b] * static_cast<std::size_t>(geometry_.groups * geometry_.fan_in()));
    batches_[b].targets.resize(sizes[b] * static_cast<std::size_t>(geometry_.outputs));
  }
  std::vector<std::size_t> used(together_);
  for (const Turn& t : turns) {
    SampleRef from = sample(order_.at(t.number));
    const std::vector<float> mix =
        config_.drop_ratio < 1 ? mixed_inputs(from, config_, t.number, threads_) : std::vector<float>();
    if (!mix.empty()) from.input = mix;
    fill(from, t, used);
  }
  prefetch(end);
}

// Positions go in turns to each mini-batch.
MiniBatches::Turn MiniBatches::turn(std::uint64_t number, std::size_t positions, std::size_t& dealt) const {
  Turn turn{number, draw_positions(positions, kPositionsOfSample, config_.seed, number), {}};
  for (std::size_t i = 0; i < turn.positions.size(); ++i) turn.batches.push_back(dealt++ % together_);
  return turn;
}

void MiniBatches::fill(const SampleRef& from, const Turn& turn, std::vector<std::size_t>& used) {
  const Patches patches(geometry_, from.input_shape);
  if (from.target.size() != patches.positions() * patches.outputs()) {
    throw internal_error("a sample does not fit the layer's geometry");
  }
  std::vector<Patches::Place> inputs, targets;
  for (const std::size_t b : turn.batches) {
    MiniBatch& batch = batches_[b];
    const std::size_t at = used[b]++;
    if (batch.by_position) {
      inputs.push_back({batch.inputs.data() + at * patches.rows(), 1});
    } else {
      inputs.push_back({batch.inputs.data() + at, batch.positions});
    }
    targets.push_back({batch.targets.data() + at, batch.positions});
  }
  parallel_for((patches.rows() + kRowsToGather - 1) / kRowsToGather, threads_, [&](std::size_t piece) {
    const std::size_t first = piece * kRowsToGather;
    patches.gather(from.input.data(), {first, std::min(first + kRowsToGather, patches.rows())}, turn.positions, inputs);
  });
  patches.gather_outputs(from.target.data(), turn.positions, targets);
}

// As many samples as there are workers, from this number on and without those that are at hand.
void MiniBatches::prefetch(std::uint64_t number) {
  const std::uint64_t end = static_cast<std::uint64_t>(config_.num_iterations) * size_;
  const auto coming =
      order_.coming(number, end, config_.num_workers, [&](std::size_t index) { return held_.contains(index); });
  if (!coming.empty()) samples_.prefetch(coming);
}

const SampleRef& MiniBatches::sample(std::size_t index) {
  if (const auto found = held_.find(index); found != held_.end()) return found->second;
  if (bytes_ > kBatchBytes) {
    held_.clear();
    bytes_ = 0;
  }
  SampleRef read = samples_.get(index);
  bytes_ += sizeof(float) * (read.input.size() + read.float_input.size() + read.target.size());
  return held_[index] = std::move(read);
}

std::size_t MiniBatches::positions_of(std::size_t index) {
  auto& positions = positions_[index];
  if (!positions) positions = Patches(geometry_, sample(index).input_shape).positions();
  return *positions;
}

namespace {

constexpr std::uint64_t kMixSeed = 0x6d69786572ULL;  // keeps the mix apart from the order
constexpr std::size_t kMixPiece = 1 << 14;           // elements that one thread mixes at a time

}  // namespace

std::size_t SampleOrder::at(std::uint64_t turn) {
  const std::uint64_t round = turn / order_.size();
  if (round != round_) {
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    for (std::size_t i = order_.size(); i > 1; --i)
      std::swap(order_[i - 1], order_[scale_to_bound(i, random_at(seed_, round, i)[0])]);
    round_ = round;
  }
  return order_[turn % order_.size()];
}

std::vector<float> mixed_inputs(const SampleRef& sample, const FinetuneConfig& config, std::uint64_t turn,
                                std::size_t threads) {
  const auto& quantized = sample.input;
  const auto& exact = sample.float_input;
  if (exact.size() != quantized.size()) throw internal_error("a mix of inputs needs those of the float model");
  const auto limit = static_cast<std::uint64_t>(std::max(config.drop_ratio, 0.0) * 0x1p32);
  std::vector<float> values(quantized.size());
  parallel_for((quantized.size() + kMixPiece - 1) / kMixPiece, threads, [&](std::size_t piece) {
    const std::size_t end = std::min((piece + 1) * kMixPiece, quantized.size());
    for (std::size_t i = piece * kMixPiece; i < end; i += 4) {
      const auto random = random_at(config.seed ^ kMixSeed, turn, i / 4);
      for (std::size_t k = 0; k < 4 && i + k < end; ++k) {
        values[i + k] = random[k] < limit ? quantized[i + k] : exact[i + k];
      }
    }
  });
  return values;
}

}  // namespace detent::solve
