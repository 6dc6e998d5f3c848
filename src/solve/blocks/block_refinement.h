// Better scales and integers for weights in blocks that are rounded already, one block after another.
#pragma once

#include <cstddef>
#include <vector>

#include "solve/algebra/cholesky.h"
#include "solve/algebra/kernels.h"
#include "solve/blocks/block_columns.h"

namespace detent::solve {

/// A turn goes over all blocks of each column. With all others as they are, a block gets the scale that is best for its
/// integers, by least squares, then each of its weights the best integer, then the scale once more. The error
/// |(Ŵ − W) L|² grows at no step. It is kept up to date as a vector, so that a turn costs as much as one product of the
/// columns with A.
///
/// Blocks that are longer than a chunk have their scales fitted before each turn and after the last.
class BlockRefinement {
 public:
  /// Refers to the factor and the chunks. `keep_zeros`: weights that are 0 keep their integers.
  BlockRefinement(const Cholesky& factor, const std::vector<BlockChunk>& chunks, bool keep_zeros,
                  const Kernels& kernels);

  void run(BlockColumns& columns, std::size_t turns) const;

 private:
  struct Work;

  void refine(BlockColumns& columns, Work& work, std::size_t chunk) const;
  void refine(BlockColumns& columns, Work& work, std::size_t chunk, std::size_t column) const;
  void fit_scale(BlockColumns& columns, Work& work, std::size_t chunk, const BlockPart& part, std::size_t column) const;
  void fit_long_blocks(BlockColumns& columns, Work& work) const;
  bool is_long(std::size_t block) const { return parts_of_[block] > 1; }

  const Cholesky& factor_;
  const std::vector<BlockChunk>& chunks_;
  bool keep_zeros_;
  std::vector<std::size_t> parts_of_;     // of each block
  std::vector<std::vector<float>> near_;  // of each chunk its part of L Lᵀ
};

}  // namespace detent::solve
