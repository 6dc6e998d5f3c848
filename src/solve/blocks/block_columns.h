// Columns of a weight while they are rounded, by their places in the factor of the Gram matrix.
#pragma once

#include <cstddef>
#include <vector>

#include "quantization/blocks/blocks.h"
#include "solve/blocks/block_factor.h"

namespace detent::solve {

/// Neighbouring places of the factor: a block of weights, or a piece of a long one.
struct BlockPart {
  std::size_t first = 0, last = 0;  // places
  std::size_t block = 0;
  bool opens = true;  // the first of its block to be rounded
};

/// Parts that are rounded together, before the error is carried on to all others.
struct BlockChunk {
  std::size_t first = 0, last = 0;  // places
  std::vector<BlockPart> parts;
};

/// Up to kColumnsTogether columns: the arrays hold so many values for each place.
struct BlockColumns {
  std::size_t count = 0;            // that there are
  std::size_t first = 0;            // the first of them in `made`
  quantization::BlockWeight& made;  // its scales and zero points are up to date; its integers are `steps`
  std::vector<float> weights;
  std::vector<float> steps;   // integers without their zero points
  std::vector<float> errors;  // (Ŵ − W) L
};

/// The grids of a block of several columns.
struct BlockGrids {
  Lanes scale, inverse, low, high;
};

BlockGrids grids_of(const quantization::BlockWeight& made, std::size_t first_column, std::size_t columns,
                    std::size_t block);

/// kLanes columns of an array that begins at place 0, from the one at `column` on, and back.
void copy_in(const float* values, std::size_t first, std::size_t last, std::size_t column, Lanes* lanes);
void copy_out(const Lanes* lanes, std::size_t first, std::size_t last, std::size_t column, float* values);

/// The integers of the columns, put where they belong: `order` tells which weight stands at each place.
void store_integers(const BlockColumns& columns, const std::vector<std::size_t>& order);

}  // namespace detent::solve
