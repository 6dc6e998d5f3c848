#include "solve/layers/streamed.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/parallel.h"
#include "solve/algebra/vector_sums.h"
#include "solve/layers/input_descent.h"
#include "solve/layers/iterations.h"
#include "solve/layers/mini_batch_steps.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/rounding_variables.h"
#include "solve/layers/shared_rows.h"
#include "solve/solvers.h"

namespace detent::solve {
namespace {

constexpr std::size_t kPowerSamples = 8;  // that the inputs' mean square is taken from

}  // namespace

double input_power(LayerSamples& samples) {
  double sum = 0;
  double count = 0;
  for (std::size_t i = 0; i < std::min(samples.count(), kPowerSamples); ++i) {
    const SampleRef sample = samples.get(i);
    sum += dot_double(sample.input.data(), sample.input.data(), sample.input.size());
    count += static_cast<double>(sample.input.size());
  }
  return count > 0 ? sum / count : 0;
}

namespace {

/// Rows that go their way by themselves: pieces of row_ranges(), each within one group.
std::vector<RowRange> pieces_of(const QuantizedWeights& weights, std::size_t groups) {
  std::vector<RowRange> pieces;
  const std::size_t group_rows = weights.rows / groups;
  for (const RowRange rows : row_ranges(weights.rows, groups, weights.fan_in)) {
    for (std::size_t first = rows.first; first < rows.last;) {
      const std::size_t last = std::min(rows.last, (first / group_rows + 1) * group_rows);
      pieces.push_back({first, last});
      first = last;
    }
  }
  return pieces;
}

class Problem final : public StreamedIterations {
 public:
  Problem(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
          LayerSamples& samples, const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control)
      : control_(control),
        variables_(weights, bias, config, input_power(samples)),
        batches_(samples, geometry, config, control.threads),
        pieces_(pieces_of(weights, static_cast<std::size_t>(geometry.groups))) {
    for (const RowRange rows : pieces_) steps_.emplace_back(rows, geometry, kernels);
  }

  Solution found(const QuantizedWeights& weights, const FinetuneConfig& config) {
    Solution solution = run(*this, config, control_);
    const auto team = control_.team();
    gather_integers(solution.integers, weights, pieces_, team);
    if (!solution.bias.empty()) gather_rows(solution.bias, pieces_, 1, team);
    return solution;
  }

  double iterate(std::size_t first, std::size_t end) override {
    double sum = 0;
    for (std::size_t at = first; at < end;) {
      check_stop(control_);
      const std::span<const MiniBatch> batches = batches_.load(at, end);
      sum += run_batches(batches, at);
      at += batches.size();
    }
    return sum / static_cast<double>(end - first);
  }

  RoundingVariables& variables() override { return variables_; }
  std::uint64_t& choice() override { return choice_; }
  void changed() override {}

 private:
  double run_batches(std::span<const MiniBatch> batches, std::size_t first) {
    std::vector<std::vector<double>> losses(steps_.size(), std::vector<double>(batches.size()));
    share_for(steps_.size(), control_.threads, control_.team(), [&](std::size_t i) {
      steps_[i].run(variables_, batches, first, losses[i], [&] { check_stop(control_); });
    });
    double sum = 0;
    for (std::size_t b = 0; b < batches.size(); ++b) {
      double loss = 0;
      for (const auto& piece : losses) loss += piece[b];
      sum += batches[b].positions > 0 ? loss / static_cast<double>(batches[b].positions) : 0;
    }
    return sum;
  }

  const SolveControl& control_;
  RoundingVariables variables_;
  std::uint64_t choice_ = 0;  // by arithmetic alone
  MiniBatches batches_;
  std::vector<RowRange> pieces_;
  std::vector<MiniBatchSteps> steps_;
};

}  // namespace

Solution solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
                        LayerSamples& samples, const FinetuneConfig& config, const Kernels& kernels,
                        const SolveControl& control) {
  const Solver* solver = find_solver(config.rounding);
  if (solver == nullptr || samples.count() == 0) return nearest(weights, bias);
  check_has_streamed_form(*solver);
  Problem problem(weights, geometry, bias, samples, config, kernels, control);
  Solution solution = problem.found(weights, config);
  if (uses_sample_descent(config)) {
    solution.integers = descend_on_samples(weights, geometry, solution, samples, config, kernels, control);
  }
  if (config.rounding == WeightSolver::adaround && config.update_bias && !bias.empty()) {
    solution.bias = streamed_bias(weights, geometry, solution, samples, kernels, control);
  }
  return solution;
}

}  // namespace detent::solve
