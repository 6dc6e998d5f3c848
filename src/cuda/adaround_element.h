// AdaRound's step for one weight: the formulas of solve/layers/adaround_step.cpp, with the library's own exponential,
// logarithm and root.
#pragma once

#include <cmath>

#include "cuda/simt.h"

namespace detent::cuda {

/// Adam's numbers as in solve/algebra/adam.h.
constexpr float kBeta1 = 0.9F;
constexpr float kBeta2 = 0.999F;
constexpr float kEpsilon = 1e-8F;
constexpr float kFaded = 1e-30F;

struct Moments {
  float mean, square;
};

/// Adds a gradient to the running moments.
DETENT_DEVICE Moments with_gradient(Moments moments, float gradient) {
  return {kBeta1 * moments.mean + ((1.0F - kBeta1) * gradient + kFaded),
          kBeta2 * moments.square + ((1.0F - kBeta2) * gradient * gradient + kFaded)};
}

/// What they change the variable by. `rate`, `scale`: see AdamStep.
DETENT_DEVICE float adam_change(Moments moments, float rate, float scale) {
  return -rate * moments.mean / std::sqrt(moments.square * scale + kEpsilon * kEpsilon);
}

/// The numbers of one iteration, the same for all weights.
struct AdaRoundNumbers {
  float rate, scale;        // of Adam
  float regularizer, beta;  // 0: none
};

struct AdaRoundVariable {
  float v, mean, square, h;
};

constexpr float kZeta = 1.1F;
constexpr float kGamma = -0.1F;

/// The rectified sigmoid.
DETENT_DEVICE float soft_h(float v) {
  const float soft = (kZeta - kGamma) / (1.0F + std::exp(-v)) + kGamma;
  return soft < 0.0F ? 0.0F : soft > 1.0F ? 1.0F : soft;
}

/// d/dh of −(1 − |2h − 1|^beta).
DETENT_DEVICE float certainty_slope(float h, float beta) {
  const float d = 2.0F * h - 1.0F;
  const float exponent = (beta - 1.0F) * std::log2(std::fmax(std::fabs(d), 1e-30F));
  const float power = std::exp2(std::fmax(exponent, -40.0F));
  return 2.0F * beta * (h < 0.5F ? -power : power);
}

/// `gradient`: of the loss by h. `certainty`: how much more the regularizer weighs for this row.
DETENT_DEVICE AdaRoundVariable adaround_step(AdaRoundVariable x, float gradient, float certainty,
                                             const AdaRoundNumbers& step) {
  // The regularizer is Σ 1 − |2h − 1|^beta, so its slope is subtracted.
  if (step.regularizer != 0) gradient -= certainty * step.regularizer * certainty_slope(x.h, step.beta);
  // The sigmoid and its slope follow from h where it is not clipped; where it is, h does not move.
  const float sigmoid = (x.h - kGamma) * (1.0F / (kZeta - kGamma));
  const float by_v = x.h > 0.0F && x.h < 1.0F ? (kZeta - kGamma) * sigmoid * (1.0F - sigmoid) : 0.0F;
  const Moments moments = with_gradient({x.mean, x.square}, gradient * by_v);
  x.mean = moments.mean;
  x.square = moments.square;
  x.v += adam_change(moments, step.rate, step.scale);
  x.h = soft_h(x.v);
  return x;
}

}  // namespace detent::cuda
