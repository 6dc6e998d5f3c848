// Adam (Kingma and Ba 2015, arXiv:1412.6980), with its two corrections of the start folded into the step.
#pragma once

#include <cmath>
#include <cstddef>

#include "solve/algebra/vector_math.h"

namespace detent::solve {

struct AdamStep {
  static constexpr float kBeta1 = 0.9F;
  static constexpr float kBeta2 = 0.999F;
  static constexpr float kEpsilon = 1e-8F;
  // Moments of variables that no gradient reaches any more fade to this and not into denormal numbers, which are slow.
  static constexpr float kFaded = 1e-30F;

  float rate = 0;   // learning rate / (1 − β1^t)
  float scale = 0;  // 1 / (1 − β2^t)

  /// Of iteration `t`, the first being 1.
  AdamStep(double learning_rate, std::size_t t)
      : rate(static_cast<float>(learning_rate / (1 - std::pow(static_cast<double>(kBeta1), static_cast<double>(t))))),
        scale(static_cast<float>(1 / (1 - std::pow(static_cast<double>(kBeta2), static_cast<double>(t))))) {}

  /// Adds a gradient to the running moments of its variable.
  [[gnu::always_inline]] void add(float gradient, float& mean, float& square) const {
    mean = kBeta1 * mean + ((1.0F - kBeta1) * gradient + kFaded);
    square = kBeta2 * square + ((1.0F - kBeta2) * gradient * gradient + kFaded);
  }
  /// What they change the variable by. ε stands under the root, which is faster and differs only where the gradient is
  /// as small as ε.
  [[gnu::always_inline]] float change(float mean, float square) const {
    return -rate * mean * inverse_root_fast(square * scale + kEpsilon * kEpsilon);
  }
};

}  // namespace detent::solve
