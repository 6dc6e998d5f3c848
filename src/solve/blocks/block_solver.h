// The ladder of methods for weights in blocks, from nearest rounding up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "quantization/blocks/blocks.h"
#include "solve/algebra/kernels.h"
#include "solve/blocks/block_error.h"
#include "solve/blocks/block_gptq.h"

namespace detent::solve {

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

/// Four, and two for long rows, where a turn takes longer.
std::size_t usual_refinements(std::size_t rows);

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

}  // namespace detent::solve
