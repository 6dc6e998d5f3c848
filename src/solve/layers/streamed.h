// Solvers that read a layer's stored activations in mini-batches: for layers whose Gram matrix is too large, and for
// inputs mixed from both branches.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "detent/config.h"
#include "solve/algebra/kernels.h"
#include "solve/layers/problem.h"
#include "solve/layers/samples.h"
#include "solve/layers/solver.h"

namespace detent::solve {

/// AdaRound or AdaQuant by config.rounding, config.num_iterations steps on config.batch_size samples each. Samples come
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

/// The candidate if it is better than nearest rounding there, else that. `error_of` is asked for both; the candidate's
/// integers are in units of the scales of `fitted`, which may be `weights`.
KeptSolution keep_if_better(const QuantizedWeights& weights, std::span<const float> bias,
                            const QuantizedWeights& fitted, Solution candidate,
                            const std::function<double(const QuantizedWeights&, const Solution&)>& error_of);

/// Mean square of the inputs, of a few samples.
double input_power(LayerSamples& samples);

}  // namespace detent::solve
