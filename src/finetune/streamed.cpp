#include "finetune/streamed.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "finetune/column_descent.h"
#include "finetune/column_steps.h"
#include "finetune/lanes.h"
#include "finetune/mini_batches.h"
#include "finetune/rounding_variables.h"

namespace detent::finetune {
namespace {

constexpr std::size_t kPowerSamples = 8;  // that the inputs' mean square is taken from

double mean_square(LayerSamples& samples) {
  double sum = 0;
  double count = 0;
  for (std::size_t i = 0; i < std::min(samples.count(), kPowerSamples); ++i) {
    const SampleRef sample = samples.get(i);
    sum += dot_double(sample.input.data(), sample.input.data(), sample.input.size());
    count += static_cast<double>(sample.input.size());
  }
  return count > 0 ? sum / count : 0;
}

/// Rows that go their way by themselves: pieces of row_ranges(), each within one group.
std::vector<RowRange> pieces_of(const QuantizedWeights& weights, std::size_t groups) {
  std::vector<RowRange> pieces;
  const std::size_t group_rows = weights.rows / groups;
  for (const RowRange rows : row_ranges(weights.rows, groups, weights.columns)) {
    for (std::size_t first = rows.first; first < rows.last;) {
      const std::size_t last = std::min(rows.last, (first / group_rows + 1) * group_rows);
      pieces.push_back({first, last});
      first = last;
    }
  }
  return pieces;
}

class Problem {
 public:
  Problem(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
          LayerSamples& samples, const Activation& activation, const FinetuneConfig& config, const Kernels& kernels,
          const SolveControl& control)
      : control_(control),
        variables_(weights, bias, config, mean_square(samples)),
        batches_(samples, geometry, config, control.threads) {
    for (const RowRange rows : pieces_of(weights, static_cast<std::size_t>(geometry.groups))) {
      steps_.emplace_back(rows, geometry, activation, kernels);
    }
  }

  /// Iterations [first, end); the mean of their losses.
  double iterate(std::size_t first, std::size_t end) {
    double sum = 0;
    for (std::size_t at = first; at < end;) {
      check_stop(control_);
      const std::span<const MiniBatch> batches = batches_.load(at, end);
      sum += run(batches, at);
      at += batches.size();
    }
    return sum / static_cast<double>(end - first);
  }

  RoundingVariables& variables() noexcept { return variables_; }

 private:
  double run(std::span<const MiniBatch> batches, std::size_t first) {
    std::vector<std::vector<double>> losses(steps_.size(), std::vector<double>(batches.size()));
    parallel_for(steps_.size(), control_.threads, [&](std::size_t i) {
      steps_[i].run(variables_, batches, first, losses[i], [&] { check_stop(control_); });
    });
    double sum = 0;
    for (std::size_t b = 0; b < batches.size(); ++b) {
      double loss = 0;
      for (const auto& piece : losses) loss += piece[b];
      sum += batches[b].columns > 0 ? loss / static_cast<double>(batches[b].columns) : 0;
    }
    return sum;
  }

  const SolveControl& control_;
  RoundingVariables variables_;
  MiniBatches batches_;
  std::vector<ColumnSteps> steps_;
};

}  // namespace

Solution solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
                        LayerSamples& samples, const Activation& activation, const FinetuneConfig& config,
                        const Kernels& kernels, const SolveControl& control) {
  if (config.rounding == Rounding::gptq) throw usage_error("GPTQ has no streamed form", "let the form be chosen");
  if (config.rounding == Rounding::nearest || samples.count() == 0) return nearest(weights, bias);
  Problem problem(weights, geometry, bias, samples, activation, config, kernels, control);
  double last_loss = 0;
  std::size_t begin = 0;
  const auto state = [&](auto& archive) {
    archive(begin);
    archive(last_loss);
    problem.variables().visit_state(archive);
  };
  take_up(control.state, state);
  for (const std::size_t end : checkpoints(config.num_iterations)) {
    if (end <= begin) continue;
    const double loss = problem.iterate(begin, end);
    if (control.progress) control.progress(end, loss);
    const bool no_better = begin > 0 && config.rounding == Rounding::adaquant && !(loss < last_loss);
    if (config.early_stop && (no_better || problem.variables().decided())) break;
    last_loss = loss;
    begin = end;
    put_down(control.state, state);
  }
  Solution solution = problem.variables().solution();
  if (activation.kind == ActivationKind::none && config.drop_ratio >= 1 && config.coordinate_sweeps > 0) {
    solution.integers = descend_on_samples(weights, geometry, solution, samples, config, kernels, control);
  }
  if (config.rounding == Rounding::adaround && config.update_bias && !bias.empty() &&
      activation.kind == ActivationKind::none) {
    solution.bias = streamed_bias(weights, geometry, solution, samples, kernels, control);
  }
  return solution;
}

}  // namespace detent::finetune
