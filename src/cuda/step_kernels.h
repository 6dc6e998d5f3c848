// An optimizer's step for all weights of some rows, fused: gradient, regularizer, moments, variable and rounded value
// in one pass over memory. All matrices are [rows, fan_in]; the number of the iteration is on the device, so that a
// recorded graph can be launched for each.
#pragma once

#include "cuda/adaquant_element.h"
#include "cuda/adaround_element.h"
#include "cuda/bfloat16.h"
#include "cuda/pack.h"

namespace detent::cuda {

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
