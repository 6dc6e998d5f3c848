// The problem of one layer: its geometry, its inputs as patches, its weights and their integers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "quantization/formats.h"

namespace detent::solve {

/// A layer's weights as a matrix [rows, fan_in], row-major, whatever layout the model stores them in: row m holds the
/// weights of output m, in the order of the inputs that output m reads (see problem.h).
///
/// Each row is divided into blocks of neighbouring weights that share a scale and a zero point: one block for the whole
/// row, or blocks along fan_in. Every row has its own entries in `scale` and `zero`, also where the model stores one
/// scale for several rows.
struct QuantizedWeights {
  std::size_t rows = 0;
  std::size_t fan_in = 0;
  std::vector<float> values;       // the float model's
  std::vector<float> scale;        // [rows, blocks()]
  std::vector<std::int32_t> zero;  // [rows, blocks()], zero points
  std::int32_t lowest = -128;      // of the integer type, or narrower
  std::int32_t highest = 127;
  /// How the model stores the scales: one for all, one for each row (axis 0), or blocks of a row (axis 1).
  quantization::Granularity granularity = quantization::Granularity::along(0);
  /// Rows m and m + scale_rows share a stored scale, as the groups of a transposed convolution do; 0: no two rows do.
  /// Scales of the whole tensor: 1.
  std::size_t scale_rows = 0;
  /// The block of each weight of a row, where the order of the weights is not the model's; else empty.
  std::vector<std::uint32_t> block_of;

  /// Weights of a row, in the model's order, whose integers of one sign may add up to quantization::kMostOfPair only.
  std::vector<std::pair<std::size_t, std::size_t>> pairs;

  /// Weights of a block; the last of a row may have fewer.
  std::size_t block_size() const noexcept {
    return granularity.block == 0 ? fan_in : static_cast<std::size_t>(granularity.block);
  }
  /// Blocks of a row.
  std::size_t blocks() const noexcept {
    return granularity.block == 0 ? 1 : (fan_in + block_size() - 1) / block_size();
  }
  /// Where `scale` and `zero` have the entries of a weight.
  std::size_t block_at(std::size_t row, std::size_t weight) const noexcept {
    if (granularity.block == 0) return row;
    return row * blocks() + (block_of.empty() ? weight / block_size() : block_of[weight]);
  }
  float scale_of(std::size_t row, std::size_t weight) const noexcept { return scale[block_at(row, weight)]; }
  std::int32_t zero_of(std::size_t row, std::size_t weight) const noexcept { return zero[block_at(row, weight)]; }
  /// The largest scale of a row: the unit that sums over its weights are made in.
  float row_scale(std::size_t row) const {
    return *std::max_element(&scale[row * blocks()], &scale[row * blocks()] + blocks());
  }
  /// A block's scale in that unit: exactly 1 where the row has one block. `block` is what block_at() gives.
  float relative_scale(std::size_t block) const {
    const float unit = row_scale(block / blocks());
    return scale[block] == unit ? 1.0F : scale[block] / unit;
  }

  std::int32_t levels() const noexcept { return highest - lowest + 1; }
  float dequantize(std::size_t row, std::size_t weight, std::int32_t q) const {
    const std::size_t at = block_at(row, weight);
    return scale[at] * static_cast<float>(q - zero[at]);
  }
  /// By how much the integer `now` should change so that its weight follows −step best. A change has to be worth more
  /// than the rounding errors of float sums, or ties would flip for ever.
  std::int32_t best_change(std::size_t row, std::size_t weight, std::int32_t now, float step) const {
    constexpr float kHalf = 0.5001F;
    const float unit = scale_of(row, weight);
    const float exact = -step / unit;
    if (unit == 0 || !(std::abs(exact) > kHalf)) return 0;
    const float low = static_cast<float>(lowest - now);
    const float high = static_cast<float>(highest - now);
    return static_cast<std::int32_t>(std::nearbyint(std::clamp(exact, low, high)));
  }
  /// Half to even, clipped. With a scale of 0 all integers stand for the same value.
  std::int32_t quantize(std::size_t row, std::size_t weight, float value) const {
    const std::size_t at = block_at(row, weight);
    if (scale[at] == 0) return std::clamp(zero[at], lowest, highest);
    const float low = static_cast<float>(lowest - zero[at]);
    const float high = static_cast<float>(highest - zero[at]);
    return static_cast<std::int32_t>(std::nearbyint(std::clamp(value / scale[at], low, high))) + zero[at];
  }
};

/// Calls fn(first, last, block) for each piece of the weights [first, last) of a row that lies within one block;
/// `block` is where `scale` and `zero` have its entries. Not for weights in another order than the model's.
template <class Fn>
void for_each_scale_block(const QuantizedWeights& weights, std::size_t row, std::size_t first, std::size_t last,
                          const Fn& fn) {
  while (first < last) {
    const std::size_t end = std::min((first / weights.block_size() + 1) * weights.block_size(), last);
    fn(first, end, weights.block_at(row, first));
    first = end;
  }
}

/// relative_scale() of all blocks of all rows.
std::vector<float> relative_scales(const QuantizedWeights& weights);

/// Sums over all positions: x, the inputs of an output at a position, from the quantized branch; y, the target there.
/// For each group g:
///   gram[g] = sum x xᵀ (fan_in²)      cross[m] = sum y_m x (fan_in), with the inputs of row m's group
/// Reconstruction error of weights w and bias b: sum over positions of |w x + b − y|², a quadratic in w and b.
struct GramForm {
  std::size_t groups = 1;
  std::vector<float> gram;          // groups × fan_in × fan_in, symmetric, both halves filled
  std::vector<float> cross;         // rows × fan_in
  std::vector<double> input_sum;    // groups × fan_in
  std::vector<double> target_sum;   // rows
  std::vector<double> target_norm;  // rows: sum of y_m²
  std::uint64_t positions = 0;
  bool symmetric = false;  // whether targets are what the float weights give for the same inputs: none are better
};

/// The answer: integers [rows, fan_in], in [lowest, highest], and the bias (empty: none, and none is to be added).
struct Solution {
  std::vector<std::int32_t> integers;
  std::vector<float> bias;
};

/// Nearest rounding, half to even, as everywhere else in detent.
Solution nearest(const QuantizedWeights& weights, std::span<const float> bias);

/// Moves the integers of pairs that add up to too much, as little as can be and those first that were rounded up most.
void limit_pair_sums(const QuantizedWeights& weights, std::vector<std::int32_t>& integers);

/// Mean squared error over all output elements, by the Gram form; accumulated in double.
double mean_squared_output_error(const QuantizedWeights& weights, const GramForm& form, const Solution& solution);

// How the output of a linear layer depends on its input and weights, without saying where it came from.

enum class LayerKind {
  product,      // y[n, m] = sum over k of x[n, k] · w[m, k]; x and y as matrices of rows, all leading axes together
  convolution,  // ONNX Conv: weights [M, C/groups, kernel…]
  transposed,   // ONNX ConvTranspose: weights [C, M/groups, kernel…]
};

/// Geometry of a layer. The spatial members have one entry for each spatial axis (1 to 3) and are empty for products.
struct LayerGeometry {
  LayerKind kind = LayerKind::product;
  std::int64_t inputs = 0;   // channels in all, or K of a product
  std::int64_t outputs = 0;  // channels in all
  std::int64_t groups = 1;
  std::vector<std::int64_t> kernel;
  std::vector<std::int64_t> strides;
  std::vector<std::int64_t> dilations;
  std::vector<std::int64_t> pads_begin;
  std::vector<std::int64_t> pads_end;
  std::vector<std::int64_t> output_padding;  // transposed only

  /// Weights that one output sums over: (inputs / groups) · kernel elements.
  std::int64_t fan_in() const;
  /// Shape of the output for an input shape [batch, channels, spatial…], or [rows…, K] of a product.
  std::vector<std::int64_t> output_shape(const std::vector<std::int64_t>& input) const;
};

// A layer as a matrix product: at each position, its weights [outputs, fan_in] are multiplied with a patch of the
// input.

using Shape = std::vector<std::int64_t>;

/// Of all extents.
std::size_t product_of(std::span<const std::int64_t> extents);

/// How the model stores the weights of a layer.
enum class WeightLayout {
  outputs_first,  // Conv [M, C/groups, kernel…], Gemm with transB [M, K]
  inputs_first,   // ConvTranspose [C, M/groups, kernel…], MatMul and Gemm without transB [K, M]
};

/// Weights as the matrix [outputs, fan_in]: row m holds the weights of output m, ordered by (input channel of its
/// group, kernel element). And back.
std::vector<float> to_matrix(const LayerGeometry& geometry, WeightLayout layout, std::span<const float> weights);
std::vector<std::int32_t> from_matrix(const LayerGeometry& geometry, WeightLayout layout,
                                      std::span<const std::int32_t> matrix);

/// Patches in a buffer of bounded size, [rows, positions]. Products store it column by column, as inputs come;
/// convolutions row by row.
struct Tile {
  std::size_t rows = 0;
  std::size_t capacity = 0;  // positions
  bool column_major = false;
  std::vector<float> values;

  Tile(std::size_t row_count, std::size_t positions, bool by_position)
      : rows(row_count), capacity(positions), column_major(by_position), values(row_count * positions) {}
  void open() { values.resize(rows * capacity); }  // again, after close()
  void close() { values = std::vector<float>(); }
  std::size_t leading() const noexcept { return column_major ? rows : capacity; }
  const float* row(std::size_t r) const noexcept { return values.data() + (column_major ? r : r * capacity); }
  float* at(std::size_t row, std::size_t position) noexcept {
    return values.data() + (column_major ? position * rows + row : row * capacity + position);
  }
};

/// The patches of one input (im2col). A position is an output pixel, of each sample of the batch one after the other,
/// or a row of a product. Its patch holds the input values that the output there depends on, `rows()` of them, those of
/// all groups below one another. Values outside of the input, and between those of a transposed convolution, are 0.
class Patches {
 public:
  Patches(const LayerGeometry& geometry, const Shape& input_shape);

  std::size_t rows() const noexcept { return rows_; }  // groups · fan_in
  std::size_t positions() const noexcept { return batch_ * sample_positions_; }
  std::size_t batch() const noexcept { return batch_; }
  std::size_t outputs() const noexcept { return outputs_; }

  struct Range {
    std::size_t first = 0;
    std::size_t last = 0;
  };
  /// Copies patch rows of positions into the tile, beginning at its position `at`.
  void gather(const float* input, Range rows, Range positions, Tile& tile, std::size_t at) const;
  /// The same for the layer's outputs [batch, outputs, positions…] or [rows…, outputs].
  void gather_outputs(const float* output, Range rows, Range positions, Tile& tile, std::size_t at) const;

  /// Where a position goes: its row r to to[r · step].
  struct Place {
    float* to = nullptr;
    std::size_t step = 1;
  };
  /// Those of a tile's positions from `first` on.
  static std::vector<Place> places(Tile& tile, std::size_t first, std::size_t count);
  /// Copies rows of the positions with these numbers each to its place. And the layer's outputs there, all of them.
  void gather(const float* input, Range rows, std::span<const std::size_t> positions,
              std::span<const Place> places) const;
  void gather_outputs(const float* output, std::span<const std::size_t> positions, std::span<const Place> places) const;

 private:
  struct Axis {
    std::int64_t in = 1, out = 1, kernel = 1, stride = 1, dilation = 1, pad = 0;
  };
  std::int64_t source(const Axis& axis, std::int64_t out, std::int64_t k) const noexcept;
  void fill_line(const float* line, const Axis& axis, std::int64_t k, std::int64_t first, std::size_t count,
                 float* to) const noexcept;
  std::int64_t source(std::size_t position, std::size_t element) const noexcept;
  void gather_row(const float* input, std::size_t row, Range positions, float* to) const noexcept;

  bool product_ = false;
  bool transposed_ = false;
  Axis axes_[3];  // outermost first
  std::size_t channels_ = 0;
  std::size_t outputs_ = 0;
  std::size_t kernel_size_ = 1;
  std::size_t rows_ = 0;
  std::size_t batch_ = 1;
  std::size_t sample_positions_ = 1;  // outputs of one channel of one sample
  std::size_t input_values_ = 1;      // of one channel of one sample
};

/// Positions for a tile of this many rows: a few MiB in all, so that it stays in the cache's reach.
std::size_t tile_positions(std::size_t rows) noexcept;

}  // namespace detent::solve
