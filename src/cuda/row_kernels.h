// What the methods of the Gram form need beside their steps. Matrices are [rows, columns].
#pragma once

#include <cmath>

#include "cuda/pack.h"

namespace detent::cuda {

/// values = scale[row] · (integer − zero[row])
struct DequantizeKernel {
  const std::int32_t* integers;
  const float* scale;
  const std::int32_t* zero;
  float* values;
  std::size_t rows, columns;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, rows * columns, [&](std::size_t i) {
      const std::size_t row = i / columns;
      values[i] = scale[row] * static_cast<float>(integers[i] - zero[row]);
    });
  }
};

/// to = (product − linear) · factor[row]; `to` may be either of them.
struct ResidualKernel {
  const float *product, *linear, *factor;
  float* to;
  std::size_t rows, columns;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, rows * columns, [&](std::size_t i) { to[i] = (product[i] - linear[i]) * factor[i / columns]; });
  }
};

/// out[row] = weight[row] · Σ x · (factor[row] · product + offset), in double. One block for each row, kSumBytes.
struct RowDotKernel {
  const float *x, *product, *offset, *factor, *weight;
  double* out;
  std::size_t columns;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    const std::size_t row = block.index();
    const std::size_t at = row * columns;
    block_sum(
        block, columns,
        [&](std::size_t k) {
          const double slope = static_cast<double>(factor[row]) * product[at + k] + offset[at + k];
          return x[at + k] * slope;
        },
        [&](double sum) { out[row] = weight[row] * sum; });
  }
};

/// By how many steps an integer should change so that its weight follows −step best: best_change() of
/// finetune/problem.h.
DETENT_DEVICE std::int32_t best_change(float step, float scale, std::int32_t now, std::int32_t lowest,
                                       std::int32_t highest) {
  constexpr float kHalf = 0.5001F;
  const float exact = -step / scale;
  if (scale == 0 || !(std::fabs(exact) > kHalf)) return 0;
  const auto low = static_cast<float>(lowest - now);
  const auto high = static_cast<float>(highest - now);
  return static_cast<std::int32_t>(std::rint(exact < low ? low : exact > high ? high : exact));
}

/// One sweep of coordinate descent. One block for each row: it goes over the columns, takes the best integer with all
/// others as they are, and keeps the residual Ŵ A − c of the columns that are still to come.
struct DescentKernel {
  const std::int32_t* integers;
  std::int32_t* next;  // integers after the sweep: another array, since all threads look at the old one
  float* residual;
  const float* gram;  // A of each group, [groups, columns, columns]
  const float* scale;
  std::int32_t lowest, highest;
  std::size_t group_rows, columns;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    const std::size_t row = block.index();
    const float* const matrix = gram + row / group_rows * columns * columns;
    float* const rest = residual + row * columns;
    for (std::size_t j = 0; j < columns; ++j) {
      block.each([&](unsigned thread) {
        const float* const line = matrix + j * columns;
        const std::int32_t now = integers[row * columns + j];
        const std::int32_t change = line[j] > 0 ? best_change(rest[j] / line[j], scale[row], now, lowest, highest) : 0;
        if (thread == 0) next[row * columns + j] = now + change;
        if (change == 0) return;
        const float moved = scale[row] * static_cast<float>(change);
        // Column j itself is not looked at again, so it may be read above by threads that come late.
        for (std::size_t k = j + 1 + thread; k < columns; k += block.threads()) rest[k] += moved * line[k];
      });
    }
  }
};

}  // namespace detent::cuda
