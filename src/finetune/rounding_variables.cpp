#include "finetune/rounding_variables.h"

#include <algorithm>

namespace detent::finetune {

RoundingVariables::RoundingVariables(const QuantizedWeights& weights, std::span<const float> bias,
                                     const FinetuneConfig& config, double input_power)
    : weights_(weights),
      config_(config),
      input_power_(input_power),
      bias_(bias.begin(), bias.end()),
      bias_mean_(bias.size()),
      bias_square_(bias.size()) {
  if (config.rounding == Rounding::adaround) {
    soft_.emplace(weights);
  } else {
    through_.emplace(weights);
  }
}

void RoundingVariables::values(RowRange rows, Patches::Range columns, float* out) const {
  const std::size_t count = columns.last - columns.first;
  for (std::size_t m = rows.first; m < rows.last; ++m, out += count) {
    if (through_) {
      std::copy_n(through_->q(m) + columns.first, count, out);
      continue;
    }
    soft_->values(m, columns, weights_.zero[m], out);
  }
}

void RoundingVariables::step(RowRange rows, Patches::Range columns, const float* slope, std::size_t iteration,
                             float* next) {
  const std::size_t count = columns.last - columns.first;
  const SoftStep soft_step = SoftStep::at(config_, iteration);
  const AdamStep adam = through_adam(config_, iteration);
  for (std::size_t m = rows.first; m < rows.last; ++m, slope += count) {
    if (soft_) {
      if (m + 1 < rows.last) soft_->prefetch(m + 1, columns);
      const float scale = weights_.scale[m];
      soft_->step(m, columns, slope, nullptr, scale, certainty_weight(scale, input_power_), soft_step);
    } else {
      through_->step(m, columns, slope, nullptr, 1.0F, adam);
    }
    if (next != nullptr) values({m, m + 1}, columns, next + (m - rows.first) * count);  // still in the nearest cache
  }
}

void RoundingVariables::step_bias(RowRange rows, const float* slope, std::size_t iteration) {
  const AdamStep adam = through_adam(config_, iteration);
  for (std::size_t m = rows.first; m < rows.last; ++m) {
    adam.add(slope[m - rows.first], bias_mean_[m], bias_square_[m]);
    bias_[m] += adam.change(bias_mean_[m], bias_square_[m]);
  }
}

}  // namespace detent::finetune
