// AdaQuant in Gram form. The gradient by the quantized weights is 2 (Ŵ A − c) / positions; with Ŵ = Ŵ₀ + scale · d,
// where d are small integers, it is a product d A and what Ŵ₀ gives, computed once.
#include <algorithm>

#include "solve/algebra/quadratic.h"
#include "solve/layers/solver.h"
#include "solve/layers/streamed.h"
#include "solve/solvers.h"

namespace detent::solve {
namespace {

class AdaQuantOnCpu final : public AdaQuantIterations {
 public:
  AdaQuantOnCpu(const QuantizedWeights& weights, const Quadratic& quadratic, const FinetuneConfig& config,
                const Kernels& kernels, const SolveControl& control)
      : weights_(weights),
        quadratic_(quadratic),
        config_(config),
        kernels_(kernels),
        control_(control),
        start_(nearest(weights, {}).integers),
        adaquant_(weights),
        offset_(weights.values.size()),
        relative_(relative_scales(weights)),
        ranges_(row_ranges(weights.rows, weights.rows / quadratic.group_rows(), weights.fan_in)) {
    share_for(ranges_.size(), control.threads, control.team(), [&](std::size_t r) { begin(ranges_[r]); });
  }

  void iterate(std::size_t first, std::size_t last) override {
    share_for(ranges_.size(), control_.threads, control_.team(),
              [&](std::size_t r) { iterate(ranges_[r], first, last); });
  }
  std::vector<double> errors() override {
    const Integers now = adaquant_.integers();
    std::vector<double> errors(weights_.rows);
    share_for(ranges_.size(), control_.threads, control_.team(), [&](std::size_t r) {
      const auto part = quadratic_.errors(weights_, now, ranges_[r]);
      std::copy(part.begin(), part.end(), errors.begin() + static_cast<std::ptrdiff_t>(ranges_[r].first));
    });
    return errors;
  }
  double constant() const override { return 0; }
  double divisor() const override { return quadratic_.positions(); }
  AdaQuantVariables& variables() override { return adaquant_; }
  void changed() override {}
  const std::vector<RowRange>& ranges() const { return ranges_; }

 private:
  void begin(RowRange rows) {
    const std::size_t k = weights_.fan_in;
    const auto values = dequantized(weights_, rows, start_.data() + rows.first * k);
    float* offset = offset_.data() + rows.first * k;
    quadratic_.residual(kernels_, rows, values.data(), offset);
    for (std::size_t i = 0; i < values.size(); ++i) offset[i] *= static_cast<float>(2 / quadratic_.positions());
  }

  void iterate(RowRange rows, std::size_t first, std::size_t last) {
    const std::size_t k = weights_.fan_in;
    std::vector<float> moved(rows.count() * k);
    std::vector<float> slope(moved.size());
    for (std::size_t i = first; i < last; ++i) {
      check_stop(control_);
      for (std::size_t m = rows.first; m < rows.last; ++m) {
        const float* q = adaquant_.q(m);
        float* to = moved.data() + (m - rows.first) * k;
        for_each_scale_block(weights_, m, 0, k, [&](std::size_t begin, std::size_t end, std::size_t block) {
          const std::int32_t zero = weights_.zero[block];
          const float unit = relative_[block];
          for (std::size_t j = begin; j < end; ++j) {
            to[j] = unit * (q[j] - static_cast<float>(start_[m * k + j] - zero));
          }
        });
      }
      quadratic_.product(kernels_, rows, moved.data(), slope.data());
      const AdamStep step = adaquant_adam(config_, i);
      for (std::size_t m = rows.first; m < rows.last; ++m) {
        const auto factor = static_cast<float>(2 * weights_.row_scale(m) / quadratic_.positions());
        adaquant_.step(m, {0, k}, slope.data() + (m - rows.first) * k, offset_.data() + m * k, factor, step);
      }
    }
  }

  const QuantizedWeights& weights_;
  const Quadratic& quadratic_;
  const FinetuneConfig& config_;
  const Kernels& kernels_;
  const SolveControl& control_;
  Integers start_;
  AdaQuantVariables adaquant_;
  std::vector<float> offset_;
  std::vector<float> relative_;  // of each block, its scale in units of the row's
  std::vector<RowRange> ranges_;
};

}  // namespace

Integers adaquant(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                  const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control) {
  const Quadratic quadratic(weights, form, bias, config.update_bias);
  if (form.positions == 0) return nearest(weights, {}).integers;
  AdaQuantOnCpu problem(weights, quadratic, config, kernels, control);
  Integers integers = run(problem, config, control);
  gather_integers(integers, weights, problem.ranges(), control.team());
  return integers;
}

namespace solvers {
/// Hubara et al. 2020, arXiv:2006.10518.
extern const Solver adaquant{.id = WeightSolver::adaquant,
                             .name = "AdaQuant",
                             .solve = solve::adaquant,
                             .cost = iteration_cost,
                             .has_streamed_form = true};
}  // namespace solvers

}  // namespace detent::solve
