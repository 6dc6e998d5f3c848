#include "finetune/straight_through.h"

namespace detent::finetune {

AdamStep through_adam(const FinetuneConfig& config, std::size_t i) {
  const double left = 1 - static_cast<double>(i) / static_cast<double>(config.num_iterations);
  return {config.learning_rate.value_or(1e-5) * left, i + 1};
}

StraightThrough::StraightThrough(const QuantizedWeights& weights)
    : weights_(weights), w_(weights.values.size()), mean_(w_.size()), square_(w_.size()), q_(w_.size()) {
  for (std::size_t i = 0; i < w_.size(); ++i) {
    const std::size_t m = i / weights.columns;
    w_[i] = weights.scale[m] == 0 ? 0.0F : weights.values[i] / weights.scale[m];
    q_[i] = static_cast<float>(weights.quantize(m, weights.values[i]) - weights.zero[m]);
  }
}

void StraightThrough::step(std::size_t row, Patches::Range columns, const float* slope, const float* offset,
                           float factor, const AdamStep& step) {
  if (weights_.scale[row] == 0) return;
  const std::size_t at = row * weights_.columns + columns.first;
  through_step({w_.data() + at, mean_.data() + at, square_.data() + at, q_.data() + at}, slope, offset, factor,
               static_cast<float>(weights_.lowest - weights_.zero[row]),
               static_cast<float>(weights_.highest - weights_.zero[row]), 1 / weights_.scale[row],
               columns.last - columns.first, step);
}

std::vector<std::int32_t> StraightThrough::integers() const {
  std::vector<std::int32_t> integers(q_.size());
  for (std::size_t i = 0; i < q_.size(); ++i) {
    integers[i] = static_cast<std::int32_t>(q_[i]) + weights_.zero[i / weights_.columns];
  }
  return integers;
}

}  // namespace detent::finetune
