#include "solve/layers/rounding_variables.h"

#include <algorithm>

namespace detent::solve {

RoundingVariables::RoundingVariables(const QuantizedWeights& weights, std::span<const float> bias,
                                     const FinetuneConfig& config, double input_power)
    : weights_(weights),
      config_(config),
      relative_(relative_scales(weights)),
      bias_(bias.begin(), bias.end()),
      bias_mean_(bias.size()),
      bias_square_(bias.size()) {
  if (config.rounding == WeightSolver::adaround) {
    adaround_.emplace(weights);
    for (const float scale : weights.scale) factors_.push_back({scale, certainty_weight(scale, input_power)});
  } else {
    adaquant_.emplace(weights);
  }
}

void RoundingVariables::weights_over_scale(RowRange rows, Patches::Range part, float* out) const {
  const std::size_t count = part.last - part.first;
  for (std::size_t m = rows.first; m < rows.last; ++m, out += count) {
    for_each_scale_block(weights_, m, part.first, part.last, [&](std::size_t first, std::size_t last, std::size_t b) {
      float* to = out + (first - part.first);
      if (adaquant_) {
        std::copy_n(adaquant_->q(m) + first, last - first, to);
      } else {
        adaround_->values(m, {first, last}, weights_.zero[b], to);
      }
      if (relative_[b] == 1) return;
      for (std::size_t i = 0; i < last - first; ++i) to[i] *= relative_[b];
    });
  }
}

void RoundingVariables::step(RowRange rows, Patches::Range part, const float* slope, std::size_t iteration,
                             float* next) {
  const std::size_t count = part.last - part.first;
  const AdaRoundStep adaround_step = AdaRoundStep::at(config_, iteration);
  const AdamStep adam = adaquant_adam(config_, iteration);
  for (std::size_t m = rows.first; m < rows.last; ++m, slope += count) {
    if (adaround_) {
      if (m + 1 < rows.last) adaround_->prefetch(m + 1, part);
      const std::size_t blocks = weights_.blocks();
      adaround_->step(m, part, slope, nullptr, std::span(factors_).subspan(m * blocks, blocks), adaround_step);
    } else {
      adaquant_->step(m, part, slope, nullptr, 1.0F, adam);
    }
    if (next != nullptr)
      weights_over_scale({m, m + 1}, part, next + (m - rows.first) * count);  // still in the nearest cache
  }
}

void RoundingVariables::step_bias(RowRange rows, const float* slope, std::size_t iteration) {
  const AdamStep adam = adaquant_adam(config_, iteration);
  for (std::size_t m = rows.first; m < rows.last; ++m) {
    adam.add(slope[m - rows.first], bias_mean_[m], bias_square_[m]);
    bias_[m] += adam.change(bias_mean_[m], bias_square_[m]);
  }
}

}  // namespace detent::solve
