// A layer as a matrix product: at each position, its weights [outputs, fan_in] are multiplied with a patch of the
// input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "solve/layers/geometry.h"

namespace detent::solve {

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
