// What the methods of the Gram form need beside their steps. Matrices are [rows, fan_in].
#pragma once

#include <cmath>

#include "cuda/simt.h"

namespace detent::cuda {

/// values = scale · (integer − zero), both of the weight's block
struct DequantizeKernel {
  const std::int32_t* integers;
  const float* scale;
  const std::int32_t* zero;
  float* values;
  ScaleBlocks blocks;
  std::size_t rows, fan_in;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, rows * fan_in, [&](std::size_t i) {
      const std::size_t at = blocks.at(i / fan_in, i % fan_in);
      values[i] = scale[at] * static_cast<float>(integers[i] - zero[at]);
    });
  }
};

/// to = (product − linear) · factor[row]; `to` may be either of them.
struct ResidualKernel {
  const float *product, *linear, *factor;
  float* to;
  std::size_t rows, fan_in;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, rows * fan_in, [&](std::size_t i) { to[i] = (product[i] - linear[i]) * factor[i / fan_in]; });
  }
};

/// out[row] = weight[row] · Σ x · (factor[row] · product + offset), in double. One block for each row, kSumBytes.
struct RowDotKernel {
  const float *x, *product, *offset, *factor, *weight;
  double* out;
  std::size_t fan_in;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    const std::size_t row = block.index();
    const std::size_t at = row * fan_in;
    block_sum(
        block, fan_in,
        [&](std::size_t k) {
          const double slope = static_cast<double>(factor[row]) * product[at + k] + offset[at + k];
          return x[at + k] * slope;
        },
        [&](double sum) { out[row] = weight[row] * sum; });
  }
};

/// By how many steps an integer should change so that its weight follows −step best: best_change() of
/// solve/layers/problem.h.
DETENT_DEVICE std::int32_t best_change(float step, float scale, std::int32_t now, std::int32_t lowest,
                                       std::int32_t highest) {
  constexpr float kHalf = 0.5001F;
  const float exact = -step / scale;
  if (scale == 0 || !(std::fabs(exact) > kHalf)) return 0;
  const auto low = static_cast<float>(lowest - now);
  const auto high = static_cast<float>(highest - now);
  return static_cast<std::int32_t>(std::rint(exact < low ? low : exact > high ? high : exact));
}

/// One sweep of coordinate descent. One block for each row: it goes over the weights, takes the best integer with all
/// others as they are, and keeps the residual Ŵ A − c of the weights that are still to come.
struct DescentKernel {
  const std::int32_t* integers;
  std::int32_t* next;  // integers after the sweep: another array, since all threads look at the old one
  float* residual;
  const float* gram;  // A of each group, [groups, fan_in, fan_in]
  const float* scale;
  std::int32_t lowest, highest;
  ScaleBlocks blocks;
  std::size_t group_rows, fan_in;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    const std::size_t row = block.index();
    const float* const matrix = gram + row / group_rows * fan_in * fan_in;
    float* const rest = residual + row * fan_in;
    for (std::size_t j = 0; j < fan_in; ++j) {
      block.each([&](unsigned thread) {
        const float* const line = matrix + j * fan_in;
        const std::int32_t now = integers[row * fan_in + j];
        const float unit = scale[blocks.at(row, j)];
        const std::int32_t change = line[j] > 0 ? best_change(rest[j] / line[j], unit, now, lowest, highest) : 0;
        if (thread == 0) next[row * fan_in + j] = now + change;
        if (change == 0) return;
        const float moved = unit * static_cast<float>(change);
        // Column j itself is not looked at again, so it may be read above by threads that come late.
        for (std::size_t k = j + 1 + thread; k < fan_in; k += block.threads()) rest[k] += moved * line[k];
      });
    }
  }
};

}  // namespace detent::cuda
