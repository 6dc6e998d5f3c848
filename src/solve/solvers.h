// The rounding methods of fine-tuning, a row each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "detent/config.h"
#include "solve/algebra/kernels.h"
#include "solve/layers/problem.h"
#include "solve/layers/solver.h"

namespace detent::solve {

/// A layer, in numbers.
struct SolverSizes {
  double weights = 0;  // outputs × fan_in
  double fan_in = 0;
  double groups = 0;
  std::size_t threads = 1;

  double matrix() const noexcept { return groups * fan_in * fan_in; }  // elements of the Gram matrices
  double product() const noexcept { return 2 * weights * fan_in; }     // operations of weights · Gram matrix
};

/// An optimizer's step on one weight, in the time of so many operations of matrix products.
inline constexpr double kStepFlops = 160;

/// Beside the sums over samples, coordinate descent and the comparison with nearest rounding.
struct SolverCost {
  double flops = 0;
  double floats = 0;  // of memory
};

/// A rounding method. To add one, give it a word in WeightSolver (detent/config.h) and a file in solve/solvers/,
/// which defines `solvers::NAME` under the file's name: the build lists the files of that folder. All else follows from
/// the row. A method runs on the CPU, also beside GPUs that sum up the samples, unless cuda/gram_methods.cpp has it.
struct Solver {
  WeightSolver id = WeightSolver::nearest;
  const char* name = "";  // as it is written in messages
  /// Integers from the Gram form, for the bias as given, or for the best one if config.update_bias is set. The caller
  /// keeps nearest rounding of each row that it serves better, and does coordinate descent afterwards. The result must
  /// not depend on the number of threads. Throws interrupted when control asks for it.
  Integers (*solve)(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                    const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control) = nullptr;
  SolverCost (*cost)(const SolverSizes& sizes, const FinetuneConfig& config) = nullptr;
  /// Whether it can also work in mini-batches (streamed.h), and on the inputs of layers with few positions
  /// (input_form.h).
  bool has_streamed_form = false;
  bool has_input_form = false;
  /// Whether targets that are symmetric need not be summed up: it then needs the Gram matrix alone, and compares itself
  /// with nearest rounding.
  bool takes_symmetric_form = false;
  std::size_t coordinate_sweeps = 2;  // afterwards, where config.coordinate_sweeps is unset
};

/// All of them.
std::span<const Solver* const> all_solvers();
/// The one that belongs to a word; null for nearest and automatic.
const Solver* find_solver(WeightSolver id);

/// Throws usage where it has none.
void check_has_streamed_form(const Solver& solver);

/// What an optimizer costs that steps over all weights config.num_iterations times.
SolverCost iteration_cost(const SolverSizes& sizes, const FinetuneConfig& config);

struct FormCost {
  /// Multiplications and additions. Work on single elements is counted as the products that take as long.
  double flops = 0;
  /// Peak of memory while the layer is solved, beside its weights and what is stored of its samples.
  std::uint64_t bytes = 0;
};

/// Accumulating the form from `samples` inputs of this shape, and solving it. Of the rounding's numbers unset ones take
/// their defaults.
FormCost gram_cost(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples,
                   const FinetuneConfig& config, std::size_t threads);

/// Solving in mini-batches of config.batch_size samples, and descent on positions of all samples.
FormCost streamed_cost(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples,
                       const FinetuneConfig& config, std::size_t threads);

/// Whether layers can be solved from sums over their samples: all inputs have to come from the quantized branch.
bool has_gram_form(const FinetuneConfig& config);

}  // namespace detent::solve
