#include "solve/layers/sample_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "base/random.h"

namespace detent::solve {
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
