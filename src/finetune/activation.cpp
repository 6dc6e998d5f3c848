#include "finetune/activation.h"

#include <cmath>
#include <numbers>

namespace detent::finetune {
namespace {

struct Point {
  float value;
  float slope;
};

template <class Function>
double run(float* y, const float* target, std::size_t count, float factor, const Function& function) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Point a = function(y[i]);
    const float d = a.value - target[i];
    sum += static_cast<double>(d) * d;
    y[i] = factor * 2 * d * a.slope;
  }
  return sum;
}

Point sigmoid(float x) {
  const float s = 1 / (1 + std::exp(-x));
  return {s, s * (1 - s)};
}

Point hyperbolic_tangent(float x) {
  const float t = std::tanh(x);
  return {t, 1 - t * t};
}

Point gelu(float x) {
  constexpr float kDensity = 0.398942280F;  // 1 / sqrt(2 pi)
  const float share = 0.5F * (1 + std::erf(x * (std::numbers::sqrt2_v<float> / 2)));
  return {x * share, share + x * kDensity * std::exp(-0.5F * x * x)};
}

Point gelu_tanh(float x) {
  constexpr float kScale = 0.797884561F;  // sqrt(2 / pi)
  constexpr float kCubic = 0.044715F;
  const float t = std::tanh(kScale * (x + kCubic * x * x * x));
  return {0.5F * x * (1 + t), 0.5F * (1 + t) + 0.5F * x * (1 - t * t) * kScale * (1 + 3 * kCubic * x * x)};
}

Point hard_swish(float x) {
  if (x <= -3) return {0, 0};
  if (x >= 3) return {x, 1};
  return {x * (x / 6 + 0.5F), x / 3 + 0.5F};
}

}  // namespace

double loss_and_gradient(const Activation& activation, float* y, const float* target, std::size_t count, float factor) {
  const auto with = [&](const auto& function) { return run(y, target, count, factor, function); };
  const float low = activation.low, high = activation.high, slope = activation.slope;
  switch (activation.kind) {
    case ActivationKind::none: break;
    case ActivationKind::relu: return with([](float x) { return x > 0 ? Point{x, 1} : Point{0, 0}; });
    case ActivationKind::clip:
      return with([=](float x) { return x < low ? Point{low, 0} : x > high ? Point{high, 0} : Point{x, 1}; });
    case ActivationKind::leaky_relu:
      return with([=](float x) { return x > 0 ? Point{x, 1} : Point{slope * x, slope}; });
    case ActivationKind::sigmoid: return with(sigmoid);
    case ActivationKind::tanh: return with(hyperbolic_tangent);
    case ActivationKind::gelu: return with(gelu);
    case ActivationKind::gelu_tanh: return with(gelu_tanh);
    case ActivationKind::hard_swish: return with(hard_swish);
  }
  return with([](float x) { return Point{x, 1}; });
}

}  // namespace detent::finetune
