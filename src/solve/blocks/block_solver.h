// The ladder of methods for weights in blocks, from nearest rounding up.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "quantization/blocks/block_search.h"
#include "quantization/blocks/blocks.h"
#include "solve/algebra/kernels.h"
#include "solve/blocks/block_error.h"

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

enum class BlockMethod {
  nearest,    // quantization::nearest()
  search,     // quantization::search(), weighted by the diagonal of the Gram matrix
  gptq,       // BlockGptq with turns
  automatic,  // of each column the best of these
};

struct BlockSolverOptions {
  BlockMethod method = BlockMethod::automatic;
  std::optional<double> damping = {};     // see Damping; unset: usual_damping()
  std::optional<std::size_t> turns = {};  // after GPTQ, see BlockRefinement; unset: usual_refinements()
  bool keep_zeros = false;                // weights that are 0 stay 0, as those that sparsity has set so
};

/// Errors are sums of column_errors() over the columns: by what is held back where there is something.
struct BlockSolution {
  quantization::BlockWeight weight;
  double error = 0;
  // With the method automatic, of each rung alone.
  double error_nearest = 0, error_search = 0, error_gptq = 0;
  std::vector<double> column_errors;        // of what was chosen; only with the method automatic
  std::vector<BlockMethod> column_methods;  // the same
};

/// Solves the columns of one weight, in one call or in stripes of a multiple of kColumnsTogether: each stripe's result
/// is that of the whole, with any number of threads.
///
/// Memory: with gptq and automatic the factor of the Gram matrix, and for a stripe four times its weights at the most.
class BlockSolver {
 public:
  /// Refers to the sums. `held_back`: of samples that are not in `gram`; decides what automatic keeps.
  BlockSolver(const Gram& gram, const std::optional<GramOrInputRows>& held_back,
              const quantization::BlockFormat& format, const BlockSolverOptions& options, const Kernels& kernels,
              std::size_t threads);

  /// `against`: what errors are told of, where `columns` are not the weights themselves, but those that sparsity left.
  BlockSolution solve(std::span<const float> columns, std::span<const float> against = {}) const;

  /// What the method gptq makes of columns, whatever the method is, and without their errors. Not for the methods
  /// nearest and search.
  quantization::BlockWeight rounded(std::span<const float> columns) const { return gptq_->round(columns); }

 private:
  quantization::BlockWeight searched(std::span<const float> columns) const;

  Gram gram_;
  GramOrInputRows judge_;
  quantization::BlockFormat format_;
  BlockSolverOptions options_;
  const Kernels& kernels_;
  std::size_t threads_;
  Damping damping_;
  std::optional<BlockGptq> gptq_;
};

/// Factors for the inputs of a product that make its weights easier to round, from sums over samples alone.
struct InputScales {
  /// For each input k: W[k] is to be multiplied by it, and what makes the input divided by it. Empty: none helps.
  std::vector<float> factors;
  double exponent = 0;
  /// Sums of squared errors of the results, see column_errors(), with the factors and without.
  double error = 0;
  double error_before = 0;
};

/// The factors power[k]^(exponent / 2), power being the diagonal of the Gram matrix, for the exponent of 0, 0.1 … 1
/// that leaves the smallest error when the weights are rounded: AWQ (Lin et al. 2023, arXiv:2306.00978), with the exact
/// error of all samples instead of runs of the model, and with the whole power instead of the mean magnitude. Divided
/// by the root of the smallest times the largest, and within 1e-4 and 1e4.
///
/// `columns`: those of all products that read these inputs, or some of them. Rounding is nearest(), or with `search`
/// that of search() weighted by the power that is left. Memory: for each thread three rows of kColumnsTogether columns.
InputScales best_input_scales(const Gram& gram, std::span<const float> columns, const quantization::BlockFormat& format,
                              bool search, const Kernels& kernels, std::size_t threads);

}  // namespace detent::solve
