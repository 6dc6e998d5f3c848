// GPTQ on weights in blocks, each block's scale and zero point found when its turn comes, and turns after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quantization/blocks/block_search.h"
#include "quantization/blocks/blocks.h"
#include "solve/algebra/cholesky.h"
#include "solve/algebra/kernels.h"
#include "solve/blocks/block_columns.h"
#include "solve/blocks/block_error.h"
#include "solve/blocks/block_refinement.h"

namespace detent::solve {

struct BlockGptqOptions {
  /// Blocks, and the weights in each, in the order of the power of their inputs, the largest first; else as they lie.
  bool activation_order = true;
  /// Scales from the weights as they are instead of as they have become when their block is reached.
  bool scales_first = false;
  /// Weights that are 0 stay 0, as those that sparsity has set so.
  bool keep_zeros = false;
  /// After the rounding: how often each block gets the scale and the integers that are best while all others stay.
  std::size_t turns = 0;
};

/// GPTQ (Frantar et al. 2022, arXiv:2210.17323) as the nearest-plane method, see solvers/gptq.cpp: with the Hessian
/// (Gram matrix XXᵀ) A = L Lᵀ of Damping the error of Ŵ is |(Ŵ − W) L|². Blocks are rounded one after another, each
/// weight so that it makes up for the errors before it. When a block is reached, its weights are those that make up for
/// these errors best while they are not yet rounded, and search_blocks() chooses scale and zero point for them. Blocks
/// of more than kLongestBlock weights have them from the weights as they are.
///
/// Memory: the factor (rows² floats), and for each thread 5 · rows · kColumnsTogether floats.
class BlockGptq {
 public:
  BlockGptq(const Gram& gram, const Damping& damping, const quantization::BlockFormat& format,
            const BlockGptqOptions& options, const Kernels& kernels, std::size_t threads);

  /// Columns of `rows` weights each, which follow one another. Threads change nothing, nor does it matter how columns
  /// are divided into calls, so long as each call but the last has a multiple of kColumnsTogether.
  quantization::BlockWeight round(std::span<const float> columns) const;

  static constexpr std::size_t kLongestBlock = 256;

 private:
  struct Work;

  void round_piece(std::span<const float> columns, std::size_t first, quantization::BlockWeight& made) const;
  void round_lanes(Work& work, const BlockChunk& chunk, std::size_t column) const;
  void find_scales(Work& work, const BlockChunk& chunk, const BlockPart& part, std::size_t column) const;

  std::size_t rows_;
  quantization::BlockFormat format_;
  BlockGptqOptions options_;
  std::size_t threads_;
  std::vector<float> importance_;   // of weights
  std::vector<std::size_t> order_;  // which weight stands at each place; the last place is rounded first
  std::vector<BlockChunk> chunks_;  // in the order of rounding
  Cholesky factor_;
  BlockRefinement refinement_;
};

}  // namespace detent::solve
