// Exact coordinate descent on a layer's inputs, where there is no Gram matrix, or where that would cost more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "detent/config.h"
#include "solve/algebra/kernels.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/problem.h"
#include "solve/layers/solver.h"

namespace detent::solve {

/// Inputs of one group: those at position c begin at inputs + c · leading. Targets are those of all rows, [rows,
/// count], without the bias; null: symmetric.
struct InputView {
  const float* inputs = nullptr;
  std::size_t leading = 0;
  std::size_t count = 0;
  const float* targets = nullptr;
};

/// Sweeps over rows of one group. Each weight gets the integer that is best while all others stay. With fewer positions
/// than weights the problem is underdetermined: a ridge term then keeps weights near their float values, the stronger
/// the fewer positions there are.
class InputDescent {
 public:
  /// Weights and view must outlive this. Without `sweeps`, run() must not be asked for any.
  InputDescent(const QuantizedWeights& weights, const InputView& view, const Kernels& kernels, bool sweeps = true);

  /// The residual Ŵ X − Y for integers [rows, fan_in], which a sweep works on.
  std::vector<float> residual_of(RowRange rows, const Integers& integers) const;
  /// Replaces rows of `best` by those of `other` that have a smaller residual. It costs little where `best` is better:
  /// a part of the positions mostly suffices to tell.
  void keep_better(RowRange rows, Integers& best, std::vector<float>& best_rest, const Integers& other) const;
  /// Up to `sweeps` sweeps, until no integer changes. `rest` is the residual of `integers`.
  void run(RowRange rows, std::size_t sweeps, Integers& integers, std::vector<float> rest) const;

 private:
  std::vector<float> changes(RowRange rows, const Integers& integers) const;
  void add_rest(RowRange rows, const std::vector<float>& changes, std::size_t first, std::size_t last,
                std::vector<float>& rest) const;
  bool sweep(RowRange rows, Integers& integers, std::vector<float>& rest) const;
  bool sweep_row(std::size_t row, std::size_t first, const float* gram, std::size_t size, float* slopes,
                 float* difference, std::int32_t* integers) const;

  const QuantizedWeights& weights_;
  const InputView& view_;
  const Kernels& kernels_;
  float ridge_ = 0;                        // factor of the squared distance of a weight from its float value
  std::vector<std::vector<float>> grams_;  // of each block of weights
};

/// How many positions of all samples together descend_on_samples() uses.
std::size_t descent_positions(const LayerGeometry& geometry);
/// Those of one of so many samples, whose input has this shape; drawn by `seed`.
std::vector<std::size_t> descent_positions(const LayerGeometry& geometry, const Shape& input_shape, std::size_t samples,
                                           std::size_t sample, std::uint64_t seed);
/// The factor of the squared distance of a weight from its float value, for inputs whose squares have this sum over all
/// positions and weights: directions that fewer positions than weights leave open are expected to carry as much power
/// as the others. 0 where there are as many.
float descent_ridge(double power, std::size_t fan_in, std::uint64_t positions);

/// Whether it follows a streamed solver: not where inputs are mixed of both branches.
bool uses_sample_descent(const FinetuneConfig& config);

/// A solution's integers, improved on the same number of positions of each sample, drawn by config.seed. Rows for which
/// nearest rounding is better go back to it, then coordinate_sweeps() follow. Threads do not change the result.
Integers descend_on_samples(const QuantizedWeights& weights, const LayerGeometry& geometry, const Solution& solution,
                            LayerSamples& samples, const FinetuneConfig& config, const Kernels& kernels,
                            const SolveControl& control);

// GPTQ as the nearest-plane method (gptq.cpp), for a factor of all weights or of some.

/// Rounds the weights of some rows, the last place of the factor first, each so that its entry of (Ŵ − W) L becomes
/// smallest. By places of the factor are: `order`, the weights of a row; `wanted`, W, with rows `stride` apart; `more`,
/// what weights outside the factor add to the entries, or null; `difference`, which gets Ŵ − W and is zero before.
/// `integers` are of whole rows, from the first one on. `errors`, or null, gets the squares of each row's entries
/// added.
void round_to_planes(const QuantizedWeights& weights, RowRange rows, const Cholesky& factor, const std::size_t* order,
                     const float* wanted, std::size_t stride, const float* more, float* difference,
                     std::int32_t* integers, std::vector<double>* errors);

}  // namespace detent::solve
