// Solvers that read a layer's stored activations in mini-batches: for layers whose Gram matrix is too large, and for
// inputs mixed from both branches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "detent/config.h"
#include "solve/algebra/kernels.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/problem.h"
#include "solve/layers/rounding_variables.h"
#include "solve/layers/solver.h"

namespace detent::solve {

/// AdaRound or AdaQuant by config.solver, config.num_iterations steps on config.batch_size samples each. Samples come
/// in a new random order each time all have been used; with config.drop_ratio below 1 each input element comes from the
/// float branch with the remaining probability. The loss is the mean over positions of the sum over outputs of
/// |Ŵ x + b − y|². The order and the mix follow from config.seed; the result is the same for any number of threads.
///
/// The bias is trained along with the weights by AdaQuant if config.update_bias is set; AdaRound leaves it to
/// streamed_bias(). Coordinate descent follows where uses_sample_descent() says so. Throws usage for GPTQ, which needs
/// the Gram form.
Solution solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
                        LayerSamples& samples, const FinetuneConfig& config, const Kernels& kernels,
                        const SolveControl& control);

/// Mean squared error over the outputs of all samples, at up to 256 positions of each, by the plain definition.
double reconstruction_error(const QuantizedWeights& weights, const LayerGeometry& geometry, const Solution& solution,
                            LayerSamples& samples, const Kernels& kernels, const SolveControl& control);

/// What one sample adds to it.
struct SampleError {
  double squares = 0;
  std::uint64_t outputs = 0;
};
std::vector<SampleError> sample_errors(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                       const Solution& solution, LayerSamples& samples, const Kernels& kernels,
                                       const SolveControl& control);
/// The mean over all outputs; of none 0.
double mean_of(std::span<const SampleError> errors);

/// The bias with the smallest error for given integers, in one pass over the samples.
std::vector<float> streamed_bias(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                 const Solution& solution, LayerSamples& samples, const Kernels& kernels,
                                 const SolveControl& control);

/// What is kept of a layer's solution, by the error on samples that it was not made from.
struct KeptSolution {
  Solution solution;
  double error = 0;          // of what is kept
  double nearest_error = 0;  // of nearest rounding with the bias as it was
  bool tuned = false;        // whether it is the candidate
};

/// The candidate if it is better than nearest rounding there, else that. `error_of` is asked for both.
KeptSolution keep_if_better(const QuantizedWeights& weights, std::span<const float> bias, Solution candidate,
                            const std::function<double(const Solution&)>& error_of);

/// Mean square of the inputs, of a few samples.
double input_power(LayerSamples& samples);

/// Rows of one group are independent problems, so a few of them go through many iterations by themselves: their
/// variables stay in the cache. For a part of the weights at a time, it computes gradient, step and the contribution to
/// the next iteration's outputs; neither weights nor gradients are stored as a whole. One thread at a time.
class MiniBatchSteps {
 public:
  MiniBatchSteps(RowRange rows, const LayerGeometry& geometry, const Kernels& kernels)
      : rows_(rows),
        fan_in_(static_cast<std::size_t>(geometry.fan_in())),
        first_input_(rows.first / static_cast<std::size_t>(geometry.outputs / geometry.groups) * fan_in_),
        kernels_(kernels) {}

  /// The iterations from `first` on, one for each mini-batch; adds the loss of each, the sum over its positions, to
  /// `losses`. Which iterations are run together does not change the result. Rows that are settled are skipped, and
  /// their last loss is reported. `check` may throw, to stop.
  void run(RoundingVariables& variables, std::span<const MiniBatch> batches, std::size_t first,
           std::span<double> losses, const std::function<void()>& check);

 private:
  using Outputs = std::vector<float>;  // rows × positions of the mini-batch

  void add_outputs(const MiniBatch& batch, Patches::Range weights, Outputs& outputs) const;
  double loss_and_slopes(const RoundingVariables& variables, const MiniBatch& batch, Outputs& outputs,
                         std::vector<float>& by_bias) const;
  void slopes_by_weights(const MiniBatch& batch, const Outputs& slopes, Patches::Range weights);
  std::pair<const float*, std::size_t> inputs_of(const MiniBatch& batch, std::size_t first) const;

  RowRange rows_;
  std::size_t fan_in_;
  std::size_t first_input_;  // of the rows' group
  const Kernels& kernels_;
  std::vector<float> values_, slope_;  // of a part of the weights
  double last_loss_ = 0;               // of one position
};

/// AdaRound in Gram form.
class AdaRoundIterations {
 public:
  virtual ~AdaRoundIterations() = default;
  /// Iterations [first, last) of all rows. The loss after them, the mean over positions, if it is asked for.
  virtual double iterate(std::size_t first, std::size_t last, bool loss) = 0;
  /// As they are after the last iteration. Whoever changes them calls changed().
  virtual AdaRoundVariables& variables() = 0;
  virtual void changed() = 0;
};

/// AdaQuant in Gram form.
class AdaQuantIterations {
 public:
  virtual ~AdaQuantIterations() = default;
  virtual void iterate(std::size_t first, std::size_t last) = 0;
  /// Of each row with the integers that there are now, in the same unit each time. A constant may be missing: only
  /// differences of a row's errors count.
  virtual std::vector<double> errors() = 0;
  /// What to add to the sum of errors() and divide it by for the mean loss.
  virtual double constant() const = 0;
  virtual double divisor() const = 0;
  virtual AdaQuantVariables& variables() = 0;
  virtual void changed() = 0;
};

/// Either of them in mini-batches.
class StreamedIterations {
 public:
  virtual ~StreamedIterations() = default;
  /// The mean of the losses of iterations [first, last).
  virtual double iterate(std::size_t first, std::size_t last) = 0;
  virtual RoundingVariables& variables() = 0;
  /// How the work is done, as far as it was chosen by measuring: a resumed layer keeps to it.
  virtual std::uint64_t& choice() = 0;
  virtual void changed() = 0;
};

/// Through all iterations, in the intervals of interval_ends(), with progress, state and early stop as `config` and
/// `control` say.
Integers run(AdaRoundIterations& problem, const FinetuneConfig& config, const SolveControl& control);
Integers run(AdaQuantIterations& problem, const FinetuneConfig& config, const SolveControl& control);
Solution run(StreamedIterations& problem, const FinetuneConfig& config, const SolveControl& control);

}  // namespace detent::solve
