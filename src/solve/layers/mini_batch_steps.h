// Iterations of a few rows of weights on mini-batches that are in memory.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "solve/algebra/kernels.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/rounding_variables.h"

namespace detent::solve {

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
  std::pair<const float*, std::int64_t> inputs_of(const MiniBatch& batch, std::size_t first) const;

  RowRange rows_;
  std::size_t fan_in_;
  std::size_t first_input_;  // of the rows' group
  const Kernels& kernels_;
  std::vector<float> values_, slope_;  // of a part of the weights
  double last_loss_ = 0;               // of one position
};

}  // namespace detent::solve
