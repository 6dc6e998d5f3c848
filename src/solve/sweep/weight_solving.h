// One weight in blocks, solved stripe by stripe from the sums over what its products read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>

#include "detent/config.h"
#include "onnx/tensor.h"
#include "quantization/blocks/block_weights.h"
#include "solve/algebra/kernels.h"
#include "solve/blocks/block_solver.h"
#include "solve/sweep/gram_sweep.h"
#include "solve/sweep/stored_blocks.h"

namespace detent::solve {

/// What solves a weight that is given as it is: awq is search on weights that have been scaled.
BlockMethod solver_of(WeightMethod method);

/// What stands for the method where something is tried out: the other rungs of automatic matter to single columns.
BlockMethod method_of_trials(WeightMethod method);

struct WeightSolvingOptions {
  WeightMethod method = WeightMethod::automatic;
  WeightSparsity sparsity = WeightSparsity::none;
  const Kernels& kernels;
  std::size_t threads = 1;
  std::optional<std::uint64_t> memory_budget = {};  // of this process; one piece of columns is worked on in any case
  std::stop_token stop = {};
};

/// Writes the solution's columns to `writer`, but does not finish it. With sparsity, weights that a table reads as well
/// stay dense. Threads and memory change nothing.
BlockVerdict solve_weight(const onnx::Tensor& tensor, const quantization::BlockTensor& shape, const InputGrams& grams,
                          const WeightSolvingOptions& options, BlockWriter& writer);

/// What solving takes for each kColumnsTogether columns that it has at a time, on a thread and beside it.
std::uint64_t memory_of_piece(std::int64_t rows);

/// Matrices of rows² floats that solving a weight takes beside the sums.
constexpr std::uint64_t matrices_beside_sums(WeightSparsity sparsity) {
  return sparsity == WeightSparsity::none ? 1 : 2;
}

}  // namespace detent::solve
