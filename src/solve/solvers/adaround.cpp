// AdaRound in Gram form. With Ŵ = base + scale · h the gradient by h is 2 scale (scale · h G + E) / positions, where
// E = base G − C is computed once: what a step costs is one product h G and one pass over the variables.
#include <numeric>

#include "solve/algebra/quadratic.h"
#include "solve/layers/solver.h"
#include "solve/layers/streamed.h"
#include "solve/solvers.h"

namespace detent::solve {
namespace {

/// Rows are independent, so each piece goes through a whole interval by itself.
class AdaRoundOnCpu final : public AdaRoundIterations {
 public:
  AdaRoundOnCpu(const QuantizedWeights& weights, const Quadratic& quadratic, const FinetuneConfig& config,
                const Kernels& kernels, const SolveControl& control)
      : weights_(weights),
        quadratic_(quadratic),
        config_(config),
        kernels_(kernels),
        control_(control),
        adaround_(weights),
        offset_(weights.values.size()),
        factors_(weights.scale.size()),
        relative_(relative_scales(weights)),
        ranges_(row_ranges(weights.rows, weights.rows / quadratic.group_rows(), weights.fan_in)),
        losses_(ranges_.size()) {
    const bool report = static_cast<bool>(control.progress);
    share_for(ranges_.size(), control.threads, control.team(), [&](std::size_t r) {
      begin(ranges_[r]);
      if (report) losses_[r] = loss_of_base(ranges_[r]);
    });
    base_loss_ = std::accumulate(losses_.begin(), losses_.end(), 0.0);
  }

  double iterate(std::size_t first, std::size_t last, bool loss) override {
    share_for(ranges_.size(), control_.threads, control_.team(),
              [&](std::size_t r) { losses_[r] = iterate(ranges_[r], first, last, loss); });
    return base_loss_ + std::accumulate(losses_.begin(), losses_.end(), 0.0);
  }
  AdaRoundVariables& variables() override { return adaround_; }
  void changed() override {}
  const std::vector<RowRange>& ranges() const { return ranges_; }

 private:
  /// E, with the factor of the gradient in it.
  void begin(RowRange rows) {
    const std::size_t k = weights_.fan_in;
    for (std::size_t m = rows.first; m < rows.last; ++m) {
      const double power = quadratic_.input_power(quadratic_.group_of(m)), unit = weights_.row_scale(m);
      for (std::size_t b = m * weights_.blocks(); b < (m + 1) * weights_.blocks(); ++b) {
        const float scale = weights_.scale[b];
        factors_[b] = {static_cast<float>(2 * unit * scale / quadratic_.positions()), certainty_weight(scale, power)};
      }
    }
    const auto base = dequantized(weights_, rows, adaround_.base().data() + rows.first * k);
    float* offset = offset_.data() + rows.first * k;
    quadratic_.residual(kernels_, rows, base.data(), offset);
    for (std::size_t i = 0; i < base.size(); ++i) {
      offset[i] *= static_cast<float>(2 * weights_.scale_of(rows.first + i / k, i % k) / quadratic_.positions());
    }
  }

  /// Iterations [first, last) of these rows; their loss above that of `base`, if it is asked for.
  double iterate(RowRange rows, std::size_t first, std::size_t last, bool loss) {
    std::vector<float> slope(rows.count() * weights_.fan_in), scaled;
    for (std::size_t i = first; i < last; ++i) {
      check_stop(control_);
      quadratic_.product(kernels_, rows, in_row_units(rows, scaled), slope.data());
      const AdaRoundStep step = AdaRoundStep::at(config_, i);
      for (std::size_t m = rows.first; m < rows.last; ++m) {
        adaround_.step(m, {0, weights_.fan_in}, slope.data() + (m - rows.first) * weights_.fan_in, offset(m),
                       factors(m), step);
      }
    }
    if (!loss) return 0;
    quadratic_.product(kernels_, rows, in_row_units(rows, scaled), slope.data());
    return loss_above_base(rows, slope);
  }

  /// h of rows in units of each row's scale: as it is where rows have one block.
  const float* in_row_units(RowRange rows, std::vector<float>& scaled) const {
    const std::size_t k = weights_.fan_in;
    if (weights_.blocks() == 1) return adaround_.h(rows.first);
    scaled.resize(rows.count() * k);
    for (std::size_t m = rows.first; m < rows.last; ++m) {
      float* to = scaled.data() + (m - rows.first) * k;
      for_each_scale_block(weights_, m, 0, k, [&](std::size_t begin, std::size_t end, std::size_t block) {
        for (std::size_t j = begin; j < end; ++j) to[j] = relative_[block] * adaround_.h(m)[j];
      });
    }
    return scaled.data();
  }

  double loss_of_base(RowRange rows) const {
    const auto errors = quadratic_.errors(weights_, adaround_.base(), rows);
    return std::accumulate(errors.begin(), errors.end(), 0.0) / quadratic_.positions();
  }

  const float* offset(std::size_t row) const { return offset_.data() + row * weights_.fan_in; }
  std::span<const AdaRoundFactors> factors(std::size_t row) const {
    return std::span(factors_).subspan(row * weights_.blocks(), weights_.blocks());
  }

  double loss_above_base(RowRange rows, const std::vector<float>& slope) const {
    double sum = 0;
    for (std::size_t m = rows.first; m < rows.last; ++m) {
      const float* p = slope.data() + (m - rows.first) * weights_.fan_in;
      for_each_scale_block(weights_, m, 0, weights_.fan_in, [&](std::size_t begin, std::size_t end, std::size_t block) {
        const float half = factors_[block].slope / 2;
        for (std::size_t k = begin; k < end; ++k) {
          sum += static_cast<double>(adaround_.h(m)[k]) * (half * p[k] + offset(m)[k]);
        }
      });
    }
    return sum;
  }

  const QuantizedWeights& weights_;
  const Quadratic& quadratic_;
  const FinetuneConfig& config_;
  const Kernels& kernels_;
  const SolveControl& control_;
  AdaRoundVariables adaround_;
  std::vector<float> offset_;
  std::vector<AdaRoundFactors> factors_;  // of each block
  std::vector<float> relative_;           // of each block, its scale in units of the row's
  std::vector<RowRange> ranges_;
  std::vector<double> losses_;
  double base_loss_ = 0;
};

}  // namespace

Integers adaround(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                  const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control) {
  const Quadratic quadratic(weights, form, bias, config.update_bias);
  if (form.positions == 0) return nearest(weights, {}).integers;
  AdaRoundOnCpu problem(weights, quadratic, config, kernels, control);
  Integers integers = run(problem, config, control);
  gather_integers(integers, weights, problem.ranges(), control.team());
  return integers;
}

namespace solvers {
/// With the gradient over all data in each step: Nagel et al. 2020, arXiv:2004.10568.
extern const Solver adaround{.id = WeightSolver::adaround,
                             .name = "AdaRound",
                             .solve = solve::adaround,
                             .cost = iteration_cost,
                             .has_streamed_form = true};
}  // namespace solvers

}  // namespace detent::solve
