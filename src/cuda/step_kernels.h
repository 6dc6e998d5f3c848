// An optimizer's step for all weights of some rows, fused: gradient, regularizer, moments, variable and rounded value
// in one pass over memory. All matrices are [rows, columns]; which iteration it is stands on the device, so that a
// recorded graph can be launched for each.
#pragma once

#include "cuda/bfloat16.h"
#include "cuda/pack.h"
#include "cuda/soft_element.h"
#include "cuda/through_element.h"

namespace detent::cuda {

/// The gradient of the loss by the value that is optimized is factor[row] · slope + offset (none: null).
struct SoftRowNumbers {
  float factor, certainty;
};

struct SoftStepKernel {
  float *v, *mean, *square, *h;
  Bfloat16* narrow;  // h as the product wants it, or null
  const float *slope, *offset;
  const SoftRowNumbers* numbers;
  const SoftNumbers* steps;  // of all iterations
  const unsigned* iteration;
  std::size_t rows, columns;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    const SoftNumbers step = steps[*iteration];
    for_all_packs(block, rows, columns, [&]<int n>(std::uint32_t row, std::size_t at) {
      const SoftRowNumbers by_row = numbers[row];
      Pack<n> pv = load<n>(v + at), pm = load<n>(mean + at), ps = load<n>(square + at), ph = load<n>(h + at);
      const Pack<n> slopes = load<n>(slope + at);
      Pack<n> offsets{};
      if (offset != nullptr) offsets = load<n>(offset + at);
      for (int i = 0; i < n; ++i) {
        const float gradient = by_row.factor * slopes.value[i] + offsets.value[i];
        const SoftVariable x =
            soft_step({pv.value[i], pm.value[i], ps.value[i], ph.value[i]}, gradient, by_row.certainty, step);
        pv.value[i] = x.v;
        pm.value[i] = x.mean;
        ps.value[i] = x.square;
        ph.value[i] = x.h;
      }
      store(v + at, pv);
      store(mean + at, pm);
      store(square + at, ps);
      store(h + at, ph);
      if (narrow != nullptr) {
        for (int i = 0; i < n; ++i) narrow[at + i] = to_bfloat16(ph.value[i]);
      }
    });
  }
};

struct ThroughRowNumbers {
  float factor, low, high, per_step;
};

struct ThroughStepKernel {
  float *w, *mean, *square, *q;
  float* moved;        // q − start, or null
  Bfloat16* narrow;    // the same as the product wants it, or null
  const float* start;  // with moved
  const float *slope, *offset;
  const ThroughRowNumbers* numbers;
  const ThroughNumbers* steps;
  const unsigned* iteration;
  std::size_t rows, columns;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    const ThroughNumbers step = steps[*iteration];
    for_all_packs(block, rows, columns, [&]<int n>(std::uint32_t row, std::size_t at) {
      const ThroughRowNumbers by_row = numbers[row];
      Pack<n> pw = load<n>(w + at), pm = load<n>(mean + at), ps = load<n>(square + at), pq = load<n>(q + at);
      const Pack<n> slopes = load<n>(slope + at);
      Pack<n> offsets{}, starts{};
      if (offset != nullptr) offsets = load<n>(offset + at);
      if (moved != nullptr) starts = load<n>(start + at);
      for (int i = 0; i < n; ++i) {
        const float gradient = by_row.factor * slopes.value[i] + offsets.value[i];
        const ThroughVariable x = through_step({pw.value[i], pm.value[i], ps.value[i], pq.value[i]}, gradient,
                                               by_row.low, by_row.high, by_row.per_step, step);
        pw.value[i] = x.w;
        pm.value[i] = x.mean;
        ps.value[i] = x.square;
        pq.value[i] = x.q;
        starts.value[i] = x.q - starts.value[i];
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

/// moved = q − start, and the same as the product wants it (may be null).
struct MovedKernel {
  const float *q, *start;
  float* moved;
  Bfloat16* narrow;
  std::size_t count;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, count, [&](std::size_t i) {
      moved[i] = q[i] - start[i];
      if (narrow != nullptr) narrow[i] = to_bfloat16(moved[i]);
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
