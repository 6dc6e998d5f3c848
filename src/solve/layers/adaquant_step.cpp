// The hot loop of AdaQuant, in a file of its own for its compiler options.
#include "base/numbers.h"
#include "solve/layers/rounding_variables.h"

namespace detent::solve {
namespace {

template <bool has_offset>
[[gnu::always_inline]] inline void run(const AdaQuantRow& row, const float* __restrict slope,
                                       const float* __restrict offset, float factor, float low, float high,
                                       float per_step, std::size_t count, const AdamStep& step) {
  constexpr float kRound = 12582912.0F;  // 1.5 · 2^23: rounds half to even
  float* __restrict w = row.w;
  float* __restrict mean = row.mean;
  float* __restrict square = row.square;
  float* __restrict q = row.q;
  const AdamStep adam = step;
  for (std::size_t i = 0; i < count; ++i) {
    float gradient = factor * slope[i];
    if constexpr (has_offset) gradient += offset[i];
    const float rounded = (w[i] + kRound) - kRound;
    gradient = rounded < low ? 0.0F : gradient;
    gradient = rounded > high ? 0.0F : gradient;
    adam.add(gradient, mean[i], square[i]);
  }
  for (std::size_t i = 0; i < count; ++i) {
    const float moved = w[i] + adam.change(mean[i], square[i]) * per_step;
    w[i] = moved;
    float next = (moved + kRound) - kRound;
    next = next < low ? low : next;
    q[i] = next > high ? high : next;
  }
}

DETENT_VECTOR_CLONES
void run_plain(const AdaQuantRow& row, const float* slope, float factor, float low, float high, float per_step,
               std::size_t count, const AdamStep& step) {
  run<false>(row, slope, nullptr, factor, low, high, per_step, count, step);
}
DETENT_VECTOR_CLONES
void run_offset(const AdaQuantRow& row, const float* slope, const float* offset, float factor, float low, float high,
                float per_step, std::size_t count, const AdamStep& step) {
  run<true>(row, slope, offset, factor, low, high, per_step, count, step);
}

}  // namespace

void adaquant_step(const AdaQuantRow& row, const float* slope, const float* offset, float factor, float low, float high,
                   float per_step, std::size_t count, const AdamStep& step) {
  if (offset == nullptr) return run_plain(row, slope, factor, low, high, per_step, count, step);
  run_offset(row, slope, offset, factor, low, high, per_step, count, step);
}

}  // namespace detent::solve
