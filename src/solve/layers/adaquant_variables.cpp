#include "solve/layers/adaquant_variables.h"

namespace detent::solve {

AdamStep adaquant_adam(const FinetuneConfig& config, std::size_t i) {
  const double left = 1 - static_cast<double>(i) / static_cast<double>(config.num_iterations);
  return {config.learning_rate.value_or(1e-5) * left, i + 1};
}

AdaQuantVariables::AdaQuantVariables(const QuantizedWeights& weights)
    : weights_(weights), w_(weights.values.size()), mean_(w_.size()), square_(w_.size()), q_(w_.size()) {
  for (std::size_t i = 0; i < w_.size(); ++i) {
    const std::size_t m = i / weights.fan_in, k = i % weights.fan_in;
    const float scale = weights.scale_of(m, k);
    w_[i] = scale == 0 ? 0.0F : weights.values[i] / scale;
    q_[i] = static_cast<float>(weights.quantize(m, k, weights.values[i]) - weights.zero_of(m, k));
  }
}

void AdaQuantVariables::step(std::size_t row, Patches::Range part, const float* slope, const float* offset,
                             float factor, const AdamStep& step) {
  for_each_scale_block(weights_, row, part.first, part.last, [&](std::size_t first, std::size_t last, std::size_t b) {
    if (weights_.scale[b] == 0) return;
    const std::size_t at = row * weights_.fan_in + first, done = first - part.first;
    adaquant_step({w_.data() + at, mean_.data() + at, square_.data() + at, q_.data() + at}, slope + done,
                  offset == nullptr ? nullptr : offset + done, factor,
                  static_cast<float>(weights_.lowest - weights_.zero[b]),
                  static_cast<float>(weights_.highest - weights_.zero[b]), 1 / weights_.scale[b], last - first, step);
  });
}

std::vector<std::int32_t> AdaQuantVariables::integers() const {
  std::vector<std::int32_t> integers(q_.size());
  for (std::size_t i = 0; i < q_.size(); ++i) {
    integers[i] = static_cast<std::int32_t>(q_[i]) + weights_.zero_of(i / weights_.fan_in, i % weights_.fan_in);
  }
  return integers;
}

}  // namespace detent::solve
