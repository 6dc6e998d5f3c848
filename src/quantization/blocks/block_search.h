// Scales and zero points of blocks that bring the rounded weights closest to the weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quantization/blocks/blocks.h"

namespace detent::quantization {

/// One block of each of several columns: value k of column n is values[n * stride + k].
struct BlockOfColumns {
  const float* values = nullptr;
  std::size_t stride = 0;
  std::size_t columns = 0;
  std::size_t length = 0;
};

/// For each column a scale and a zero point with a small sum over k of importance[k] * (value - stored value)^2, never
/// above that of block_scale(). It is found by trying ranges from a little wider than the values' to much narrower
/// ones, each with the zero points next to the best guess (symmetric: both signs of the scale) and with the scale that
/// is best for the integers that come out, by least squares. Every level of a block is a finite float.
///
/// `importance` has a weight >= 0 for each k; empty, or the same for all of them: all 1. `found` has an element for
/// each column. `quick` tries half as many, for scales that are fitted later. `integers` gets the nearest integers,
/// those of column n at integers + n * integer_stride; may be null. The same result on every CPU. Throws bad_input
/// where a value is not finite. Memory: 64 bytes for each k.
void search_blocks(const BlockOfColumns& of, const BlockFormat& format, std::span<const float> importance,
                   std::span<BlockScale> found, std::uint8_t* integers, std::size_t integer_stride, bool quick = false);

/// All blocks of columns of `rows` values each, which follow one another. `importance` has a weight for each row, or is
/// empty.
BlockWeight search(std::span<const float> columns, std::int64_t rows, const BlockFormat& format,
                   std::span<const float> importance = {});

// Weights that were rounded before they became floats lie on grids: the values of a block are first + distance * i.

/// Whether each block of these columns lies on a grid of so few values as the format has, at a distance that float16
/// holds.
bool lie_on_grids(std::span<const float> columns, std::int64_t rows, const BlockFormat& format);

/// search(), and for blocks on a grid its own integers, whose scale is the distance. A zero point is whole, so that all
/// values of a block may be off by the same. How far, which counts times the sum of the block's inputs, follows the
/// rows as one more for each block: the result has rows + blocks_of(rows). Blocks must divide the rows.
BlockWeight blocks_on_grids(std::span<const float> columns, std::int64_t rows, const BlockFormat& format);

/// What the rows of a product are with what follows them in such a result added: dequantize() for it.
void dequantize_sums(const BlockWeight& weight, std::int64_t rows, std::span<float> values);

}  // namespace detent::quantization
