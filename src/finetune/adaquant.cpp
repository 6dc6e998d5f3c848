// AdaQuant in Gram form. The gradient by the quantized weights is 2 (Ŵ A − c) / columns; with Ŵ = Ŵ₀ + scale · d, where
// d are small integers, it is a product d A and what Ŵ₀ gives, computed once.
#include <algorithm>
#include <numeric>

#include "base/parallel.h"
#include "finetune/quadratic.h"
#include "finetune/solver.h"
#include "finetune/straight_through.h"

namespace detent::finetune {
namespace {

class Problem {
 public:
  Problem(const QuantizedWeights& weights, const Quadratic& quadratic, const FinetuneConfig& config,
          const Kernels& kernels, const SolveControl& control)
      : weights_(weights),
        quadratic_(quadratic),
        config_(config),
        kernels_(kernels),
        control_(control),
        start_(nearest(weights, {}).integers),
        through_(weights),
        offset_(weights.values.size()) {}

  void begin(RowRange rows) {
    const std::size_t k = weights_.columns;
    std::vector<float> values(rows.count() * k);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = weights_.dequantize(rows.first + i / k, start_[rows.first * k + i]);
    }
    float* offset = offset_.data() + rows.first * k;
    quadratic_.residual(kernels_, rows, values.data(), offset);
    for (std::size_t i = 0; i < values.size(); ++i) offset[i] *= static_cast<float>(2 / quadratic_.columns());
  }

  void iterate(RowRange rows, std::size_t first, std::size_t last) {
    const std::size_t k = weights_.columns;
    std::vector<float> moved(rows.count() * k);
    std::vector<float> slope(moved.size());
    for (std::size_t i = first; i < last; ++i) {
      check_stop(control_);
      for (std::size_t m = rows.first, at = 0; m < rows.last; ++m) {
        for (std::size_t j = 0; j < k; ++j, ++at) {
          moved[at] = through_.q(m)[j] - static_cast<float>(start_[m * k + j] - weights_.zero[m]);
        }
      }
      quadratic_.product(kernels_, rows, moved.data(), slope.data());
      const AdamStep step = through_adam(config_, i);
      for (std::size_t m = rows.first; m < rows.last; ++m) {
        const auto factor = static_cast<float>(2 * weights_.scale[m] / quadratic_.columns());
        through_.step(m, {0, k}, slope.data() + (m - rows.first) * k, offset_.data() + m * k, factor, step);
      }
    }
  }

  const Integers& start() const noexcept { return start_; }
  Integers now() const { return through_.integers(); }
  StraightThrough& through() noexcept { return through_; }

 private:
  const QuantizedWeights& weights_;
  const Quadratic& quadratic_;
  const FinetuneConfig& config_;
  const Kernels& kernels_;
  const SolveControl& control_;
  Integers start_;
  StraightThrough through_;
  std::vector<float> offset_;
};

}  // namespace

Integers adaquant(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                  const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control) {
  const Quadratic quadratic(weights, form, bias, config.update_bias);
  if (form.columns == 0) return nearest(weights, {}).integers;
  Problem problem(weights, quadratic, config, kernels, control);
  const auto ranges = row_ranges(weights.rows, form.groups, weights.columns);
  Integers best = problem.start();
  std::vector<double> best_errors(weights.rows);
  const auto errors_into = [&](const Integers& integers, std::vector<double>& errors) {
    parallel_for(ranges.size(), control.threads, [&](std::size_t r) {
      const auto part = quadratic.errors(weights, integers, ranges[r]);
      std::copy(part.begin(), part.end(), errors.begin() + static_cast<std::ptrdiff_t>(ranges[r].first));
    });
  };
  parallel_for(ranges.size(), control.threads, [&](std::size_t r) { problem.begin(ranges[r]); });
  errors_into(best, best_errors);

  std::size_t begin = 0;
  const auto state = [&](auto& archive) {
    archive(begin);
    archive(best);
    archive(best_errors);
    problem.through().visit_state(archive);
  };
  take_up(control.state, state);
  for (const std::size_t end : checkpoints(config.num_iterations)) {
    if (end <= begin) continue;
    parallel_for(ranges.size(), control.threads, [&](std::size_t r) { problem.iterate(ranges[r], begin, end); });
    begin = end;
    const Integers now = problem.now();
    std::vector<double> errors(weights.rows);
    errors_into(now, errors);
    bool better = false;
    for (std::size_t m = 0; m < weights.rows; ++m) {
      if (!(errors[m] < best_errors[m])) continue;
      better = true;
      best_errors[m] = errors[m];
      const auto at = static_cast<std::ptrdiff_t>(m * weights.columns);
      std::copy_n(now.begin() + at, weights.columns, best.begin() + at);
    }
    if (control.progress) {
      control.progress(end, std::accumulate(errors.begin(), errors.end(), 0.0) / quadratic.columns());
    }
    if (config.early_stop && !better) break;
    put_down(control.state, state);
  }
  return best;
}

}  // namespace detent::finetune
