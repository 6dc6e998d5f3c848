#include "finetune/mini_batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"

namespace detent::finetune {
namespace {

constexpr std::uint64_t kMixSeed = 0x6d69786572ULL;  // keeps the mix apart from the order
constexpr std::size_t kMixPiece = 1 << 14;           // elements that one thread mixes at a time
constexpr std::size_t kRowsToGather = 64;            // patch rows that one thread copies at a time

}  // namespace

bool has_columns(const LayerGeometry& geometry, const Shape& input_shape, std::size_t batch_size) {
  if (geometry.kind == LayerKind::product) return true;
  if (geometry.groups > 1) return false;
  const Patches patches(geometry, input_shape);
  return patches.rows() * patches.columns() * std::max<std::size_t>(batch_size, 1) * sizeof(float) <= kBatchBytes;
}

MiniBatches::MiniBatches(LayerSamples& samples, const LayerGeometry& geometry, const FinetuneConfig& config,
                         std::size_t threads, bool gather)
    : samples_(samples),
      geometry_(geometry),
      config_(config),
      threads_(threads),
      gather_(gather),
      order_(samples.count()) {}

std::vector<MiniBatch> MiniBatches::load(std::size_t first, std::size_t end) {
  const std::size_t size = std::max<std::size_t>(config_.batch_size, 1);
  if (!gather_ || bytes_ > kBatchBytes || config_.drop_ratio < 1) {
    drawn_.clear();
    bytes_ = 0;
  }
  std::vector<MiniBatch> batches;
  for (std::size_t i = first; i < end && (batches.empty() || (gather_ && bytes_ <= kBatchBytes)); ++i) {
    MiniBatch& batch = batches.emplace_back();
    for (std::size_t b = 0; b < size; ++b) batch.push_back(draw(static_cast<std::uint64_t>(i) * size + b));
  }
  announce(static_cast<std::uint64_t>(first + batches.size()) * size);
  return batches;
}

// As many samples as there are workers, from this position on and without those that are at hand.
void MiniBatches::announce(std::uint64_t position) {
  const std::uint64_t end =
      static_cast<std::uint64_t>(config_.num_iterations) * std::max<std::size_t>(config_.batch_size, 1);
  const bool stay = gather_ && bytes_ <= kBatchBytes && config_.drop_ratio >= 1;
  std::vector<std::size_t> coming;
  for (std::uint64_t p = position; p < std::min(end, position + order_.size()); ++p) {
    if (coming.size() == config_.num_workers) break;
    const std::size_t index = sample_at(p);
    const bool known = std::find(coming.begin(), coming.end(), index) != coming.end();
    if (!known && !(stay && drawn_.contains(index))) coming.push_back(index);
  }
  if (!coming.empty()) samples_.announce(coming);
}

std::size_t MiniBatches::sample_at(std::uint64_t position) {
  const std::uint64_t round = position / order_.size();
  if (round != round_) shuffle(round);
  return order_[position % order_.size()];
}

void MiniBatches::shuffle(std::uint64_t round) {
  std::iota(order_.begin(), order_.end(), std::size_t{0});
  for (std::size_t i = order_.size(); i > 1; --i) {
    std::swap(order_[i - 1], order_[below(i, random_at(config_.seed, round, i)[0])]);
  }
  round_ = round;
}

std::shared_ptr<const Drawn> MiniBatches::draw(std::uint64_t position) {
  const std::size_t index = sample_at(position);
  const bool mixes = config_.drop_ratio < 1;
  auto& kept = drawn_[mixes ? position : index];
  if (kept) return kept;
  auto drawn = std::make_shared<Drawn>();
  drawn->sample = samples_.get(index);
  drawn->columns = drawn->sample.target.size() / static_cast<std::size_t>(geometry_.outputs);
  if (mixes) mix(*drawn, position);
  if (gather_) gather(*drawn);
  bytes_ += sizeof(float) * (drawn->sample.input.size() + drawn->sample.target.size() + drawn->mixed.size() +
                             drawn->gathered.size() + drawn->targets.size());
  return kept = std::move(drawn);
}

void MiniBatches::mix(Drawn& drawn, std::uint64_t position) const {
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

void MiniBatches::gather(Drawn& drawn) const {
  const Patches patches(geometry_, drawn.sample.input_shape);
  const Patches::Range all{0, patches.columns()};
  const std::size_t outputs = patches.outputs();
  if (drawn.columns != patches.columns()) throw internal_error("a sample does not fit the layer's geometry");
  Tile targets(outputs, drawn.columns, false);
  if (geometry_.kind == LayerKind::product) {
    for (std::size_t c = 0; c < drawn.columns; ++c) {
      for (std::size_t m = 0; m < outputs; ++m) *targets.at(m, c) = drawn.sample.target[c * outputs + m];
    }
  } else {
    patches.gather_outputs(drawn.sample.target.data(), {0, outputs}, all, targets, 0);
    Tile inputs(patches.rows(), drawn.columns, false);
    parallel_for((inputs.rows + kRowsToGather - 1) / kRowsToGather, threads_, [&](std::size_t piece) {
      const std::size_t first = piece * kRowsToGather;
      patches.gather(drawn.input(), {first, std::min(first + kRowsToGather, inputs.rows)}, all, inputs, 0);
    });
    drawn.gathered = std::move(inputs.values);
  }
  drawn.targets = std::move(targets.values);
}

}  // namespace detent::finetune
