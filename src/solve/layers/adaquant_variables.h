// AdaQuant's variables: weights as continuous numbers, rounded where the loss sees them; its gradient passes straight
// through the rounding (Hubara et al. 2020, arXiv:2006.10518).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "detent/config.h"
#include "solve/algebra/adam.h"
#include "solve/layers/patches.h"
#include "solve/layers/problem.h"

namespace detent::solve {

/// The step of iteration `i` in [0, config.num_iterations). The rate falls from config.learning_rate to 0: at a
/// constant one weights between two integers go on changing places, and the end is as good as the moment it is taken
/// at.
AdamStep adaquant_adam(const FinetuneConfig& config, std::size_t i);

/// One row's arrays, for the vector loop. Weights are in units of their scale, less the zero point.
struct AdaQuantRow {
  float* w;
  float* mean;
  float* square;
  float* q;  // rounded and clipped
};

/// The step's vector loop. Gradient of the loss by the quantized weight, not in units of the scale: factor · slope[i] +
/// offset[i] (offset may be null); none reaches a weight that is clipped. One step is 1 / per_step in the weights' own
/// unit.
void adaquant_step(const AdaQuantRow& row, const float* slope, const float* offset, float factor, float low, float high,
                   float per_step, std::size_t count, const AdamStep& step);

class AdaQuantVariables {
 public:
  explicit AdaQuantVariables(const QuantizedWeights& weights);

  /// Integers less their zero points, as floats, of a row.
  const float* q(std::size_t row) const noexcept { return q_.data() + row * weights_.fan_in; }
  /// One step of a part of a row, whose slopes (and offsets, if any) are given.
  void step(std::size_t row, Patches::Range part, const float* slope, const float* offset, float factor,
            const AdamStep& step);
  std::vector<std::int32_t> integers() const;
  /// All that step() changes.
  template <class Archive>
  void visit_state(Archive& archive) {
    archive(w_);
    archive(mean_);
    archive(square_);
    archive(q_);
  }

 private:
  const QuantizedWeights& weights_;
  std::vector<float> w_, mean_, square_, q_;
};

}  // namespace detent::solve
