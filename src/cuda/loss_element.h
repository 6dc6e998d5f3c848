// The loss behind an activation: the formulas of finetune/activation.cpp.
#pragma once

#include <cmath>

#include "cuda/simt.h"
#include "finetune/activation.h"

namespace detent::cuda {

struct ActivationPoint {
  float value, slope;
};

DETENT_DEVICE ActivationPoint activate(const finetune::Activation& a, float x) {
  using Kind = finetune::ActivationKind;
  switch (a.kind) {
    case Kind::none: break;
    case Kind::relu: return x > 0 ? ActivationPoint{x, 1} : ActivationPoint{0, 0};
    case Kind::clip:
      return x < a.low ? ActivationPoint{a.low, 0} : x > a.high ? ActivationPoint{a.high, 0} : ActivationPoint{x, 1};
    case Kind::leaky_relu: return x > 0 ? ActivationPoint{x, 1} : ActivationPoint{a.slope * x, a.slope};
    case Kind::sigmoid: {
      const float s = 1 / (1 + std::exp(-x));
      return {s, s * (1 - s)};
    }
    case Kind::tanh: {
      const float t = std::tanh(x);
      return {t, 1 - t * t};
    }
    case Kind::gelu: {
      constexpr float kDensity = 0.398942280F;  // 1 / sqrt(2 pi)
      const float share = 0.5F * (1 + std::erf(x * 0.707106781F));
      return {x * share, share + x * kDensity * std::exp(-0.5F * x * x)};
    }
    case Kind::gelu_tanh: {
      constexpr float kScale = 0.797884561F;  // sqrt(2 / pi)
      constexpr float kCubic = 0.044715F;
      const float t = std::tanh(kScale * (x + kCubic * x * x * x));
      return {0.5F * x * (1 + t), 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * kScale * (1 + 3 * kCubic * x * x)};
    }
    case Kind::hard_swish:
      if (x <= -3) return {0, 0};
      if (x >= 3) return {x, 1};
      return {x * (x / 6 + 0.5F), x / 3 + 0.5F};
  }
  return {x, 1};
}

}  // namespace detent::cuda
