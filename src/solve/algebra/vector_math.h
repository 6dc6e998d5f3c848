// Exponential and logarithm in plain arithmetic, for loops that the compiler turns into vector code. Good to a few 1e-6
// of the result, and rounds the same on every vector unit.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace detent::solve {

/// 2^x for x in [-120, 120]; beyond, the value at the border.
[[gnu::always_inline]] inline float exp2_fast(float x) {
  x = x < -120.0F ? -120.0F : x;
  x = x > 120.0F ? 120.0F : x;
  constexpr float kRound = 12582912.0F;  // 1.5 · 2^23: its sum with x has no fraction
  const float whole = (x + kRound) - kRound;
  const float f = x - whole;  // in [-0.5, 0.5]: Taylor's series of exp(f ln 2)
  const float f2 = f * f;     // in pairs: a long chain of sums would leave the processor waiting
  const float high = (1.535336e-4F * f + 1.3393996e-3F) * f2 + (9.6184373e-3F * f + 5.5503324e-2F);
  const float p = high * (f2 * f) + ((0.24022651F * f + 0.69314718F) * f + 1.0F);
  return p * std::bit_cast<float>((static_cast<std::int32_t>(whole) + 127) << 23);
}

[[gnu::always_inline]] inline float exp_fast(float x) { return exp2_fast(x * 1.44269504F); }

/// log2 of a positive normal number; about -127 for 0.
[[gnu::always_inline]] inline float log2_fast(float x) {
  const std::int32_t bits = std::bit_cast<std::int32_t>(x);
  // The mantissa is brought into [sqrt(1/2), sqrt(2)).
  const std::int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float m = std::bit_cast<float>(bits - exponent * (1 << 23));
  const float t = m - 1.0F;  // minimax polynomial of log2(1 + t) / t: a division would cost as much as all the rest
  const float t2 = t * t;
  const float high = (0.176165172F * t - 0.270977007F) * t2 + (0.295100083F * t - 0.359184854F);
  const float p = high * (t2 * t) + ((0.480648689F * t - 0.721367692F) * t + 1.44269631F);
  return static_cast<float>(exponent) + p * t;
}

/// 1 / sqrt(x) of a positive normal number, good to 5e-6: a guess from the exponent and two of Newton's steps, faster
/// than a root and a division.
[[gnu::always_inline]] inline float inverse_root_fast(float x) {
  float y = std::bit_cast<float>(0x5f375a86 - (std::bit_cast<std::int32_t>(x) >> 1));
  const float half = 0.5F * x;
  y = y * (1.5F - half * y * y);
  return y * (1.5F - half * y * y);
}

/// log2 of a positive normal number, good to 3e-5, and 2^x for x in [-120, 120], good to 1e-4 of the result: for slopes
/// that only have to point the right way.
[[gnu::always_inline]] inline float log2_coarse(float x) {
  const std::int32_t bits = std::bit_cast<std::int32_t>(x);
  const std::int32_t exponent = (bits - 0x3f3504f3) >> 23;
  const float t = std::bit_cast<float>(bits - exponent * (1 << 23)) - 1.0F;
  const float t2 = t * t;
  const float p = (0.26117007F * t - 0.39246158F) * (t2 * t) + ((0.48464829F * t2 - 0.72046242F * t) + 1.44265585F);
  return static_cast<float>(exponent) + p * t;
}

[[gnu::always_inline]] inline float exp2_coarse(float x) {
  constexpr float kRound = 12582912.0F;  // 1.5 · 2^23
  const float shifted = x + kRound;
  const float f = x - (shifted - kRound);
  const float p = (0.05517167F * f + 0.24261113F) * (f * f) + (0.69326099F * f + 0.99992807F);
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(p) + (std::bit_cast<std::int32_t>(shifted) << 23));
}

// Adam (Kingma and Ba 2015, arXiv:1412.6980), with its two corrections of the start folded into the step.

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
