// Solvers of one layer's rounding problem in its Gram form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <stop_token>
#include <vector>

#include "detent/config.h"
#include "shim/shared_work.h"
#include "solve/algebra/kernels.h"
#include "solve/layers/problem.h"
#include "solve/layers/solver_state.h"

namespace detent::solve {

struct SolveControl {
  std::size_t threads = 1;
  /// Asked to stop, a solver throws interrupted soon after.
  std::stop_token stop;
  /// Iterations done, and the loss so far: the mean over positions of the sum over outputs of the squared error, before
  /// the regularizer. Called from the thread that solves, about ten times; may be empty.
  std::function<void(std::size_t iteration, double loss)> progress = {};
  /// Where AdaRound and AdaQuant save their state at the ends of the intervals of `progress`; may be null.
  SolverState* state = nullptr;
  /// That solve the layer together: each finds some of its rows, and all get all of them. Null: all rows are found
  /// here. Not with FinetuneConfig::early_stop, which looks at all rows.
  shim::Ranks* ranks = nullptr;

  shim::Team team() const { return {ranks, stop}; }
};

/// config.coordinate_sweeps, or the method's own number where it is unset.
std::size_t coordinate_sweeps(const FinetuneConfig& config);

/// Integers by config.rounding, then coordinate_sweeps() of coordinate descent, and with config.update_bias the
/// best bias for them (and integers that are best together with it). No row's error on the form's own data is above
/// that of nearest rounding. The same result for any number of threads. A bias is made only where there is one.
Solution solve(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
               const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control);

/// The solvers one by one: integers only, for the bias as given, or for the best one if update_bias is set.
using Integers = std::vector<std::int32_t>;

/// The expensive parts of solve(), on the CPU or on devices. The contracts are those of the functions below.
class GramMethods {
 public:
  virtual ~GramMethods() = default;
  /// By config.rounding, which is not nearest.
  virtual Integers integers(const FinetuneConfig& config) = 0;
  virtual Integers better_rows(const FinetuneConfig& config, Integers first, const Integers& second) = 0;
  virtual Integers coordinate_descent(const FinetuneConfig& config, Integers start) = 0;
};
Solution solve(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
               const FinetuneConfig& config, GramMethods& methods);

/// AdaRound (Nagel et al. 2020, arXiv:2004.10568) with the gradient over all data in each step.
Integers adaround(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                  const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control);
/// AdaQuant (Hubara et al. 2020, arXiv:2006.10518): weights as continuous variables, rounded in the loss and passed
/// straight through in its gradient. Of each row the best integers seen at the ends of the intervals of `progress`.
Integers adaquant(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                  const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control);
/// GPTQ (Frantar et al. 2022, arXiv:2210.17323) from the float weights and, unless form.symmetric says that they are
/// the same, from the weights that are best for these targets; of each row the better result. Where they are the same,
/// rows for which nearest rounding is better keep it.
Integers gptq(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
              const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control);
/// Sweeps over the weights, each of which gets the integer that is best while all others stay, until none changes or
/// coordinate_sweeps() are done. No row's error grows.
Integers coordinate_descent(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                            Integers start, const FinetuneConfig& config, const Kernels& kernels,
                            const SolveControl& control);
/// Of each row the candidate with the smaller error; the first where they are equal.
Integers better_rows(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                     const FinetuneConfig& config, Integers first, const Integers& second, const Kernels& kernels,
                     const SolveControl& control);

/// The bias with the smallest error for given integers: (target_sum − Ŵ input_sum) / positions.
std::vector<float> best_bias(const QuantizedWeights& weights, const GramForm& form,
                             std::span<const std::int32_t> integers);

/// The ends of the intervals in which iterations are done, about ten, the last being num_iterations: where progress is
/// reported and early stops are decided.
std::vector<std::size_t> interval_ends(std::size_t num_iterations);

/// Throws interrupted when it is asked for.
void check_stop(const SolveControl& control);

}  // namespace detent::solve
