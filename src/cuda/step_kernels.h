// An optimizer's step for all weights of some rows, fused: gradient, regularizer, moments, variable and rounded value
// in one pass over memory. All matrices are [rows, fan_in]; the number of the iteration is on the device, so that a
// recorded graph can be launched for each.
#pragma once

#include <cmath>

#include "cuda/simt.h"

namespace detent::cuda {

// AdaRound's step for one weight: the formulas of solve/layers/adaround_step.cpp, with the library's own exponential,
// logarithm and root.

/// Adam's numbers as in solve/algebra/vector_math.h.
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

// AdaQuant's step for one weight: the formulas of solve/layers/adaquant_step.cpp.

struct AdaQuantNumbers {
  float rate, scale;  // of Adam
};

/// In steps of the row's scale, less the zero point.
struct AdaQuantVariable {
  float w, mean, square, q;
};

/// `gradient`: of the loss by the quantized weight, not in units of the scale; none reaches a weight that is clipped.
/// One step is 1 / per_step.
DETENT_DEVICE AdaQuantVariable adaquant_step(AdaQuantVariable x, float gradient, float low, float high, float per_step,
                                             const AdaQuantNumbers& step) {
  const float rounded = std::rint(x.w);
  const Moments moments = with_gradient({x.mean, x.square}, rounded < low || rounded > high ? 0.0F : gradient);
  x.mean = moments.mean;
  x.square = moments.square;
  x.w += adam_change(moments, step.rate, step.scale) * per_step;
  const float next = std::rint(x.w);
  x.q = next < low ? low : next > high ? high : next;
  return x;
}

/// Blocks of a launch that steps over such a matrix in packs.
inline unsigned blocks_for_packs(std::size_t rows, std::size_t fan_in, const ScaleBlocks& blocks) {
  const bool packs = fan_in % 4 == 0 && (blocks.blocks == 1 || blocks.size % 4 == 0);
  return blocks_for(rows * fan_in / (packs ? 4 : 1));
}

/// Of a block of scales. The gradient of the loss by h is relative · (factor · slope + offset), with no offset where it
/// is null. `relative`: what h is multiplied with where the product wants it.
struct AdaRoundBlockNumbers {
  float factor, certainty, relative;
};

struct AdaRoundStepKernel {
  float *v, *mean, *square, *h;
  float* scaled;     // relative · h, or null
  Bfloat16* narrow;  // the same as the product wants it, or null
  const float *slope, *offset;
  const AdaRoundBlockNumbers* numbers;
  const AdaRoundNumbers* steps;  // of all iterations
  const unsigned* iteration;
  ScaleBlocks blocks;
  std::size_t rows, fan_in;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    const AdaRoundNumbers step = steps[*iteration];
    for_all_packs(block, rows, fan_in, blocks, [&]<int n>(std::uint32_t row, std::size_t at) {
      const AdaRoundBlockNumbers own = numbers[blocks.at(row, at - row * fan_in)];
      Pack<n> pv = load<n>(v + at), pm = load<n>(mean + at), ps = load<n>(square + at), ph = load<n>(h + at);
      const Pack<n> slopes = load<n>(slope + at);
      Pack<n> offsets{};
      if (offset != nullptr) offsets = load<n>(offset + at);
      for (int i = 0; i < n; ++i) {
        const float gradient = own.relative * (own.factor * slopes.value[i] + offsets.value[i]);
        const AdaRoundVariable x =
            adaround_step({pv.value[i], pm.value[i], ps.value[i], ph.value[i]}, gradient, own.certainty, step);
        pv.value[i] = x.v;
        pm.value[i] = x.mean;
        ps.value[i] = x.square;
        ph.value[i] = x.h;
      }
      store(v + at, pv);
      store(mean + at, pm);
      store(square + at, ps);
      store(h + at, ph);
      if (scaled == nullptr && narrow == nullptr) return;
      for (int i = 0; i < n; ++i) ph.value[i] *= own.relative;
      if (scaled != nullptr) store(scaled + at, ph);
      if (narrow != nullptr) {
        for (int i = 0; i < n; ++i) narrow[at + i] = to_bfloat16(ph.value[i]);
      }
    });
  }
};

/// Of a block of scales: as above, with the gradient by the quantized weight factor · slope + offset.
struct AdaQuantBlockNumbers {
  float factor, low, high, per_step, relative;
};

struct AdaQuantStepKernel {
  float *w, *mean, *square, *q;
  float* moved;        // relative · (q − start), or null
  Bfloat16* narrow;    // the same as the product wants it, or null
  const float* start;  // with moved
  const float *slope, *offset;
  const AdaQuantBlockNumbers* numbers;
  const AdaQuantNumbers* steps;
  const unsigned* iteration;
  ScaleBlocks blocks;
  std::size_t rows, fan_in;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    const AdaQuantNumbers step = steps[*iteration];
    for_all_packs(block, rows, fan_in, blocks, [&]<int n>(std::uint32_t row, std::size_t at) {
      const AdaQuantBlockNumbers own = numbers[blocks.at(row, at - row * fan_in)];
      Pack<n> pw = load<n>(w + at), pm = load<n>(mean + at), ps = load<n>(square + at), pq = load<n>(q + at);
      const Pack<n> slopes = load<n>(slope + at);
      Pack<n> offsets{}, starts{};
      if (offset != nullptr) offsets = load<n>(offset + at);
      if (moved != nullptr) starts = load<n>(start + at);
      for (int i = 0; i < n; ++i) {
        const float gradient = own.factor * slopes.value[i] + offsets.value[i];
        const AdaQuantVariable x = adaquant_step({pw.value[i], pm.value[i], ps.value[i], pq.value[i]}, gradient,
                                                 own.low, own.high, own.per_step, step);
        pw.value[i] = x.w;
        pm.value[i] = x.mean;
        ps.value[i] = x.square;
        pq.value[i] = x.q;
        starts.value[i] = own.relative * (x.q - starts.value[i]);
      }
      store(w + at, pw);
      store(mean + at, pm);
      store(square + at, ps);
      store(q + at, pq);
      if (moved != nullptr) store(moved + at, starts);
      if (narrow != nullptr) {
        for (int i = 0; i < n; ++i) narrow[at + i] = to_bfloat16(starts.value[i]);
      }
    });
  }
};

/// out = relative · (values − start), in units of each row's scale (start may be null: 0), and the same as the product
/// wants it; both may be null.
template <class Numbers>
struct RowUnitsKernel {
  const float *values, *start;
  float* out;
  Bfloat16* narrow;
  const Numbers* numbers;
  ScaleBlocks blocks;
  std::size_t rows, fan_in;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, rows * fan_in, [&](std::size_t i) {
      const float relative = numbers[blocks.at(i / fan_in, i % fan_in)].relative;
      const float value = relative * (start == nullptr ? values[i] : values[i] - start[i]);
      if (out != nullptr) out[i] = value;
      if (narrow != nullptr) narrow[i] = to_bfloat16(value);
    });
  }
};

/// The end of an iteration.
struct AdvanceKernel {
  unsigned* iteration;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    block.each([&](unsigned thread) {
      if (thread == 0 && block.index() == 0) ++*iteration;
    });
  }
};

}  // namespace detent::cuda
