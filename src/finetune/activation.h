// The activation that follows a layer, as part of what its output is compared by.
#pragma once

#include <cstddef>

namespace detent::finetune {

/// As ONNX defines them.
enum class ActivationKind { none, relu, clip, leaky_relu, sigmoid, tanh, gelu, gelu_tanh, hard_swish };

struct Activation {
  ActivationKind kind = ActivationKind::none;
  float low = 0;        // clip
  float high = 6;       // clip
  float slope = 0.01F;  // leaky_relu, below 0
};

/// Sum of |a(y) − target|². Replaces y by factor · 2 (a(y) − target) a'(y), its gradient by y.
double loss_and_gradient(const Activation& activation, float* y, const float* target, std::size_t count, float factor);

}  // namespace detent::finetune
