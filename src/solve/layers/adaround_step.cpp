// The hot loop of AdaRound, in a file of its own for its compiler options.
#include <algorithm>
#include <array>

#include "base/numbers.h"
#include "solve/algebra/vector_math.h"
#include "solve/layers/rounding_variables.h"

namespace detent::solve {
namespace {

constexpr float kZeta = 1.1F;
constexpr float kGamma = -0.1F;

constexpr std::size_t kTogether = 256;  // weights, in the nearest cache

// Each loop below does a part of the step for a few weights. In one loop, a weight's operations would make a chain that
// is longer than what the processor looks ahead, and most of the time it would wait.

/// out = d/dh of −regularizer · (1 − |2h − 1|^beta), that is regularizer · 2 beta |2h − 1|^(beta−1) sign(2h − 1).
[[gnu::always_inline]] inline void fill_certainty(const float* __restrict h, std::size_t count, float regularizer,
                                                  float beta, float* __restrict out) {
  for (std::size_t i = 0; i < count; ++i) {
    const float d = 2.0F * h[i] - 1.0F;
    out[i] = (beta - 1.0F) * log2_coarse(d < 0.0F ? -d : d);
  }
  const float factor = 2.0F * beta * regularizer;
  for (std::size_t i = 0; i < count; ++i) {
    // Below, as good as 0, and its square no denormal number yet.
    const float power = exp2_coarse(out[i] < -40.0F ? -40.0F : out[i]);
    out[i] = factor * (h[i] < 0.5F ? -power : power);
  }
}

template <bool has_offset, bool regularized>
[[gnu::always_inline]] inline void run_piece(const AdaRoundRow& row, const float* __restrict slope,
                                             const float* __restrict offset, const float* __restrict certainty,
                                             float factor, std::size_t count, const AdamStep& step) {
  float* __restrict v = row.v;
  float* __restrict mean = row.mean;
  float* __restrict square = row.square;
  float* __restrict h = row.h;
  const AdamStep adam = step;
  for (std::size_t i = 0; i < count; ++i) {
    float gradient = factor * slope[i];
    if constexpr (has_offset) gradient += offset[i];
    if constexpr (regularized) gradient -= certainty[i];
    // The sigmoid and its slope follow from h where it is not clipped; where it is, h does not move.
    const float sigmoid = (h[i] - kGamma) * (1.0F / (kZeta - kGamma));
    const float inner = (kZeta - kGamma) * sigmoid * (1.0F - sigmoid);
    const float by_v = h[i] > 0.0F ? (h[i] < 1.0F ? inner : 0.0F) : 0.0F;
    adam.add(gradient * by_v, mean[i], square[i]);
  }
  for (std::size_t i = 0; i < count; ++i) v[i] += adam.change(mean[i], square[i]);
  for (std::size_t i = 0; i < count; ++i) h[i] = exp_fast(-v[i]);
  for (std::size_t i = 0; i < count; ++i) {
    const float soft = (kZeta - kGamma) / (1.0F + h[i]) + kGamma;
    const float low = soft < 0.0F ? 0.0F : soft;
    h[i] = low > 1.0F ? 1.0F : low;
  }
}

template <bool has_offset, bool regularized>
[[gnu::always_inline]] inline void run(const AdaRoundRow& row, const float* slope, const float* offset, float factor,
                                       std::size_t count, const AdaRoundStep& step) {
  std::array<float, kTogether> certainty;
  for (std::size_t at = 0; at < count; at += kTogether) {
    const std::size_t n = std::min(count - at, kTogether);
    if constexpr (regularized) fill_certainty(row.h + at, n, step.regularizer, step.beta, certainty.data());
    run_piece<has_offset, regularized>({row.v + at, row.mean + at, row.square + at, row.h + at}, slope + at,
                                       has_offset ? offset + at : nullptr, certainty.data(), factor, n, step.adam);
  }
}

DETENT_VECTOR_CLONES
void run_free(const AdaRoundRow& row, const float* slope, float factor, std::size_t count, const AdaRoundStep& step) {
  run<false, false>(row, slope, nullptr, factor, count, step);
}
DETENT_VECTOR_CLONES
void run_free_offset(const AdaRoundRow& row, const float* slope, const float* offset, float factor, std::size_t count,
                     const AdaRoundStep& step) {
  run<true, false>(row, slope, offset, factor, count, step);
}
DETENT_VECTOR_CLONES
void run_regularized(const AdaRoundRow& row, const float* slope, float factor, std::size_t count,
                     const AdaRoundStep& step) {
  run<false, true>(row, slope, nullptr, factor, count, step);
}
DETENT_VECTOR_CLONES
void run_regularized_offset(const AdaRoundRow& row, const float* slope, const float* offset, float factor,
                            std::size_t count, const AdaRoundStep& step) {
  run<true, true>(row, slope, offset, factor, count, step);
}

}  // namespace

void adaround_step(const AdaRoundRow& row, const float* slope, const float* offset, float factor, std::size_t count,
                   const AdaRoundStep& step) {
  if (step.regularizer == 0) {
    if (offset == nullptr) return run_free(row, slope, factor, count, step);
    return run_free_offset(row, slope, offset, factor, count, step);
  }
  if (offset == nullptr) return run_regularized(row, slope, factor, count, step);
  run_regularized_offset(row, slope, offset, factor, count, step);
}

DETENT_VECTOR_CLONES
std::size_t count_moving(const float* h, std::size_t count) {
  std::int32_t moving = 0;
  for (std::size_t i = 0; i < count; ++i) moving += (h[i] > 0.0F) & (h[i] < 1.0F) ? 1 : 0;
  return static_cast<std::size_t>(moving);
}

DETENT_VECTOR_CLONES
void soft_quantized_weights(const std::int32_t* __restrict base, std::int32_t zero, const float* __restrict h,
                            std::size_t count, float* __restrict out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>(base[i] - zero) + h[i];
}

}  // namespace detent::solve
