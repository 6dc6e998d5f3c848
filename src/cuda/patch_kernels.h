// Positions of a layer (see solve/layers/patches.h) and sums over them.
#pragma once

#include "cuda/simt.h"

namespace detent::cuda {

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
