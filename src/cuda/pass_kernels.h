// Kernels of mini-batches: weights on their way into a convolution, losses, sums over outputs.
#pragma once

#include "cuda/adaquant_element.h"
#include "cuda/pack.h"

namespace detent::cuda {

/// Where a convolution wants a weight of the matrix [outputs, fan_in].
struct FilterOrder {
  std::size_t group_rows, kernel_size;
  std::size_t by_group, by_row, by_channel, by_element;

  DETENT_DEVICE std::size_t at(std::size_t row, std::size_t weight) const {
    return row / group_rows * by_group + row % group_rows * by_row + weight / kernel_size * by_channel +
           weight % kernel_size * by_element;
  }
};

/// filter = scale · (base + soft), in units of the scale of the weight's block and less the zero point (base null: 0).
struct WeightsToFilterKernel {
  const float *base, *soft, *scale;
  float* filter;
  FilterOrder order;
  ScaleBlocks blocks;
  std::size_t rows, fan_in;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, rows * fan_in, [&](std::size_t i) {
      const std::size_t row = i / fan_in, weight = i % fan_in;
      const float units = base == nullptr ? soft[i] : base[i] + soft[i];
      filter[order.at(row, weight)] = scale[blocks.at(row, weight)] * units;
    });
  }
};

/// matrix = filter, in the matrix's order.
struct FilterToWeightsKernel {
  const float* filter;
  float* matrix;
  FilterOrder order;
  std::size_t rows, fan_in;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, rows * fan_in, [&](std::size_t i) { matrix[i] = filter[order.at(i / fan_in, i % fan_in)]; });
  }
};

/// Values (sample, row, position) of the outputs and of their targets, each with its own order in memory.
struct OutputPlace {
  float* y;
  const float* target;
  std::size_t samples, rows, positions;
  std::size_t y_sample, y_row, y_position;
  std::size_t target_sample, target_row, target_position;

  struct Index {
    std::size_t sample, row, position;
  };
  /// The i-th in the order of y's memory: rows or positions are neighbours.
  DETENT_DEVICE Index index(std::size_t i) const {
    if (y_row == 1) return {i / rows / positions, i % rows, i / rows % positions};
    return {i / positions / rows, i / positions % rows, i % positions};
  }
  DETENT_DEVICE std::size_t y_at(const Index& i) const {
    return i.sample * y_sample + i.row * y_row + i.position * y_position;
  }
  DETENT_DEVICE std::size_t target_at(const Index& i) const {
    return i.sample * target_sample + i.row * target_row + i.position * target_position;
  }
};

/// With d = y + bias − target: losses[block] += weight · Σ d², and y becomes factor · 2 d. Of blocks_for() blocks
/// with kSumBytes; `bias` may be null.
struct LossKernel {
  OutputPlace place;
  const float* bias;
  double* losses;
  float factor;
  double weight;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    const std::size_t count = place.samples * place.rows * place.positions;
    grid_sum(
        block, count,
        [&](std::size_t i) {
          const OutputPlace::Index at = place.index(i);
          float& y = place.y[place.y_at(at)];
          const float d = (bias == nullptr ? y : y + bias[at.row]) - place.target[place.target_at(at)];
          y = factor * 2 * d;
          return static_cast<double>(d) * d;
        },
        [&](double sum) { losses[block.index()] += weight * sum; });
  }
};

/// sums[row] += Σ y over samples and positions, in double. One block for each row, kSumBytes.
struct OutputSumsKernel {
  OutputPlace place;
  double* sums;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    block_sum(
        block, place.samples * place.positions,
        [&](std::size_t i) {
          return static_cast<double>(place.y[place.y_at({i / place.positions, block.index(), i % place.positions})]);
        },
        [&](double sum) { sums[block.index()] += sum; });
  }
};

/// Adam's step of biases by the sums above.
struct BiasStepKernel {
  float *bias, *mean, *square;
  const double* slope;
  const AdaQuantNumbers* steps;
  const unsigned* iteration;
  std::size_t rows;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, rows, [&](std::size_t row) {
      const Moments moments = with_gradient({mean[row], square[row]}, static_cast<float>(slope[row]));
      mean[row] = moments.mean;
      square[row] = moments.square;
      bias[row] += adam_change(moments, steps[*iteration].rate, steps[*iteration].scale);
    });
  }
};

/// to[n, position, c] = from[n, first_channel + c, position]
struct ChannelsLastKernel {
  const float* from;
  float* to;
  std::size_t samples, channels, first_channel, used_channels, positions;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, samples * positions * used_channels, [&](std::size_t i) {
      const std::size_t c = i % used_channels, position = i / used_channels % positions;
      const std::size_t sample = i / used_channels / positions;
      to[i] = from[(sample * channels + first_channel + c) * positions + position];
    });
  }
};

}  // namespace detent::cuda
