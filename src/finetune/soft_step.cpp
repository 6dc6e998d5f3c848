// The hot loop of AdaRound, in a file of its own for its compiler options.
#include <algorithm>
#include <array>

#include "base/vector_clones.h"
#include "finetune/soft_rounding.h"
#include "finetune/vector_math.h"

namespace detent::finetune {
namespace {

constexpr float kZeta = 1.1F;
constexpr float kGamma = -0.1F;

/// d/dh of −(1 − |2h − 1|^beta), that is 2 beta |2h − 1|^(beta−1) sign(2h − 1).
[[gnu::always_inline]] inline float certainty_slope(float h, float beta) {
  const float d = 2.0F * h - 1.0F;
  const float size = d < 0.0F ? -d : d;
  const float exponent = (beta - 1.0F) * log2_fast(size);
  const float power = exp2_fast(exponent < -40.0F ? -40.0F : exponent);  // as good as 0, and its square no denormal
  return 2.0F * beta * (d < 0.0F ? -power : power);
}

/// The regularizer's part of the gradient, in a loop of its own: both loops are then short enough for the processor to
/// work on several of their turns at once.
[[gnu::always_inline]] inline void fill_certainty(const float* h, std::size_t count, float regularizer, float beta,
                                                  float* out) {
  for (std::size_t i = 0; i < count; ++i) out[i] = regularizer * certainty_slope(h[i], beta);
}

template <bool has_offset, bool regularized>
[[gnu::always_inline]] inline void run_piece(const SoftRow& row, const float* slope, const float* offset,
                                             const float* certainty, float factor, std::size_t count,
                                             const AdamStep& step) {
  float* __restrict v = row.v;
  float* __restrict mean = row.mean;
  float* __restrict square = row.square;
  float* __restrict h = row.h;
  const AdamStep adam = step;
#pragma GCC ivdep
  for (std::size_t i = 0; i < count; ++i) {  // the arrays never overlap
    float gradient = factor * slope[i];
    if constexpr (has_offset) gradient += offset[i];
    if constexpr (regularized) gradient -= certainty[i];
    // The sigmoid and its slope follow from h where it is not clipped; where it is, h does not move.
    const float sigmoid = (h[i] - kGamma) * (1.0F / (kZeta - kGamma));
    const float inner = (kZeta - kGamma) * sigmoid * (1.0F - sigmoid);
    const float by_v = h[i] > 0.0F ? (h[i] < 1.0F ? inner : 0.0F) : 0.0F;
    float m = mean[i];
    float s = square[i];
    const float moved = v[i] + adam.change(gradient * by_v, m, s);
    mean[i] = m;
    square[i] = s;
    v[i] = moved;
    const float soft = (kZeta - kGamma) / (1.0F + exp_fast(-moved)) + kGamma;
    const float low = soft < 0.0F ? 0.0F : soft;
    h[i] = low > 1.0F ? 1.0F : low;
  }
}

template <bool has_offset, bool regularized>
[[gnu::always_inline]] inline void run(const SoftRow& row, const float* slope, const float* offset, float factor,
                                       std::size_t count, const SoftStep& step) {
  std::array<float, 512> certainty;
  for (std::size_t at = 0; at < count; at += certainty.size()) {
    const std::size_t n = std::min(count - at, certainty.size());
    if constexpr (regularized) fill_certainty(row.h + at, n, step.regularizer, step.beta, certainty.data());
    run_piece<has_offset, regularized>({row.v + at, row.mean + at, row.square + at, row.h + at}, slope + at,
                                       has_offset ? offset + at : nullptr, certainty.data(), factor, n, step.adam);
  }
}

DETENT_VECTOR_CLONES
void run_free(const SoftRow& row, const float* slope, float factor, std::size_t count, const SoftStep& step) {
  run<false, false>(row, slope, nullptr, factor, count, step);
}
DETENT_VECTOR_CLONES
void run_free_offset(const SoftRow& row, const float* slope, const float* offset, float factor, std::size_t count,
                     const SoftStep& step) {
  run<true, false>(row, slope, offset, factor, count, step);
}
DETENT_VECTOR_CLONES
void run_regularized(const SoftRow& row, const float* slope, float factor, std::size_t count, const SoftStep& step) {
  run<false, true>(row, slope, nullptr, factor, count, step);
}
DETENT_VECTOR_CLONES
void run_regularized_offset(const SoftRow& row, const float* slope, const float* offset, float factor,
                            std::size_t count, const SoftStep& step) {
  run<true, true>(row, slope, offset, factor, count, step);
}

}  // namespace

void soft_step(const SoftRow& row, const float* slope, const float* offset, float factor, std::size_t count,
               const SoftStep& step) {
  if (step.regularizer == 0) {
    if (offset == nullptr) return run_free(row, slope, factor, count, step);
    return run_free_offset(row, slope, offset, factor, count, step);
  }
  if (offset == nullptr) return run_regularized(row, slope, factor, count, step);
  run_regularized_offset(row, slope, offset, factor, count, step);
}

}  // namespace detent::finetune
