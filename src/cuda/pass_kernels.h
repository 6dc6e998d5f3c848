// Kernels of mini-batches: weights on their way into a convolution, losses, sums over outputs.
#pragma once

#include "cuda/simt.h"
#include "cuda/step_kernels.h"

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

// Positions of a layer (see solve/layers/problem.h) and sums over them.

struct PatchAxis {
  std::int32_t in, out, kernel, stride, dilation, pad;
};

/// A layer with one to three axes for one input shape; those that are missing have one position.
struct PatchShape {
  PatchAxis axes[3];  // outermost first
  std::int32_t transposed;
  std::int32_t channels;          // of the input
  std::int32_t outputs;           // channels
  std::int32_t kernel_size;       // product of the axes'
  std::int32_t sample_positions;  // outputs of one channel of one sample
  std::int32_t input_values;      // of one channel of one sample
};

/// Where on an axis of the input the value comes from that kernel element k brings to an output; -1: nowhere.
DETENT_DEVICE std::int32_t patch_source(const PatchAxis& axis, bool transposed, std::int32_t out, std::int32_t k) {
  if (!transposed) {
    const std::int32_t in = out * axis.stride - axis.pad + k * axis.dilation;
    return in >= 0 && in < axis.in ? in : -1;
  }
  const std::int32_t spread = out + axis.pad - k * axis.dilation;
  if (spread < 0 || spread % axis.stride != 0) return -1;
  return spread / axis.stride < axis.in ? spread / axis.stride : -1;
}

/// Row `row` of position `position`, both counted over all groups and samples of the batch.
DETENT_DEVICE float patch_value(const PatchShape& s, const float* input, std::size_t row, std::size_t position) {
  const auto channel = static_cast<std::size_t>(row / s.kernel_size);
  const auto element = static_cast<std::int32_t>(row % s.kernel_size);
  const std::size_t sample = position / s.sample_positions;
  const auto of_sample = static_cast<std::int32_t>(position % s.sample_positions);
  const bool transposed = s.transposed != 0;
  const PatchAxis &a0 = s.axes[0], &a1 = s.axes[1], &a2 = s.axes[2];
  const std::int32_t i2 = patch_source(a2, transposed, of_sample % a2.out, element % a2.kernel);
  const std::int32_t i1 = patch_source(a1, transposed, of_sample / a2.out % a1.out, element / a2.kernel % a1.kernel);
  const std::int32_t i0 = patch_source(a0, transposed, of_sample / a2.out / a1.out, element / a2.kernel / a1.kernel);
  if (i0 < 0 || i1 < 0 || i2 < 0) return 0.0F;
  return input[(sample * s.channels + channel) * s.input_values + (i0 * a1.in + i1) * a2.in + i2];
}

/// tile[row · leading + at + c] = row first_row + row of position first + c, for rows of patches. With `drawn`, that is
/// of position drawn[first + c].
struct GatherKernel {
  PatchShape shape;
  const float* input;
  float* tile;
  std::size_t first_row, rows, first, count, leading, at;
  const std::uint32_t* drawn = nullptr;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, rows * count, [&](std::size_t i) {
      const std::size_t row = i / count, c = i % count;
      const std::size_t position = drawn == nullptr ? first + c : drawn[first + c];
      tile[row * leading + at + c] = patch_value(shape, input, first_row + row, position);
    });
  }
};

/// The same for the layer's outputs [batch, outputs, sample_positions].
struct GatherOutputsKernel {
  PatchShape shape;
  const float* output;
  float* tile;
  std::size_t first_row, rows, first, count, leading, at;
  const std::uint32_t* drawn = nullptr;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, rows * count, [&](std::size_t i) {
      const std::size_t row = i / count, c = i % count;
      const std::size_t position = drawn == nullptr ? first + c : drawn[first + c];
      const std::size_t sample = position / shape.sample_positions, of_sample = position % shape.sample_positions;
      tile[row * leading + at + c] =
          output[(sample * shape.outputs + first_row + row) * shape.sample_positions + of_sample];
    });
  }
};

/// tile[c · rows + row] = row `row` of position drawn[c], where positions lie together in both.
struct GatherPositionsKernel {
  const float* from;
  float* tile;
  std::size_t rows, count;
  const std::uint32_t* drawn;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, rows * count, [&](std::size_t i) { tile[i] = from[drawn[i / rows] * rows + i % rows]; });
  }
};

/// sum[row] += Σ tile, norm[row] += Σ tile² (norm may be null) over `count` positions, in double. Rows of a tile lie
/// together: one block for each row, kSumBytes.
struct RowSumsKernel {
  const float* tile;
  double *sum, *norm;
  std::size_t count, leading;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    const float* const row = tile + block.index() * leading;
    block_sum(
        block, count, [&](std::size_t c) { return static_cast<double>(row[c]); },
        [&](double s) { sum[block.index()] += s; });
    if (norm == nullptr) return;
    block_sum(
        block, count, [&](std::size_t c) { return static_cast<double>(row[c]) * row[c]; },
        [&](double s) { norm[block.index()] += s; });
  }
};

/// The same where positions of a tile lie together: one thread for each row.
struct ColumnSumsKernel {
  const float* tile;
  double *sum, *norm;
  std::size_t rows, count, leading;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, rows, [&](std::size_t row) {
      double s = 0, n = 0;
      for (std::size_t c = 0; c < count; ++c) {
        const double value = tile[c * leading + row];
        s += value;
        n += value * value;
      }
      sum[row] += s;
      if (norm != nullptr) norm[row] += n;
    });
  }
};

/// Copies what is below the diagonal of each of `groups` matrices to above it.
struct MirrorKernel {
  float* matrix;
  std::size_t groups, size;

  template <class Block>
  DETENT_DEVICE void operator()(Block& block) const {
    for_all(block, groups * size * size, [&](std::size_t i) {
      const std::size_t group = i / (size * size), row = i / size % size, position = i % size;
      if (position > row) matrix[i] = matrix[(group * size + position) * size + row];
    });
  }
};

}  // namespace detent::cuda
