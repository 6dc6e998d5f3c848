// AdaRound in Gram form. With Ŵ = base + scale · h the gradient by h is 2 scale (scale · h G + E) / columns, where
// E = base G − C is computed once: what a step costs is one product h G and one pass over the variables.
#include <algorithm>
#include <numeric>

#include "base/parallel.h"
#include "finetune/iterations.h"
#include "finetune/quadratic.h"

namespace detent::finetune {
namespace {

/// Rows are independent, so each piece goes through a whole interval by itself.
class Problem final : public SoftIterations {
 public:
  Problem(const QuantizedWeights& weights, const Quadratic& quadratic, const FinetuneConfig& config,
          const Kernels& kernels, const SolveControl& control)
      : weights_(weights),
        quadratic_(quadratic),
        config_(config),
        kernels_(kernels),
        control_(control),
        soft_(weights),
        offset_(weights.values.size()),
        certainty_(weights.rows),
        ranges_(row_ranges(weights.rows, weights.rows / quadratic.group_rows(), weights.columns)),
        losses_(ranges_.size()) {
    const bool report = static_cast<bool>(control.progress);
    parallel_for(ranges_.size(), control.threads, [&](std::size_t r) {
      begin(ranges_[r]);
      if (report) losses_[r] = loss_of_base(ranges_[r]);
    });
    base_loss_ = std::accumulate(losses_.begin(), losses_.end(), 0.0);
  }

  double iterate(std::size_t first, std::size_t last, bool loss) override {
    parallel_for(ranges_.size(), control_.threads,
                 [&](std::size_t r) { losses_[r] = iterate(ranges_[r], first, last, loss); });
    return base_loss_ + std::accumulate(losses_.begin(), losses_.end(), 0.0);
  }
  SoftRounding& variables() override { return soft_; }
  void changed() override {}

 private:
  /// E, with the factor of the gradient in it.
  void begin(RowRange rows) {
    const std::size_t k = weights_.columns;
    for (std::size_t m = rows.first; m < rows.last; ++m) {
      certainty_[m] = certainty_weight(weights_.scale[m], quadratic_.input_power(quadratic_.group_of(m)));
    }
    std::vector<float> base(rows.count() * k);
    for (std::size_t i = 0; i < base.size(); ++i) {
      base[i] = weights_.dequantize(rows.first + i / k, soft_.base()[rows.first * k + i]);
    }
    float* offset = offset_.data() + rows.first * k;
    quadratic_.residual(kernels_, rows, base.data(), offset);
    for (std::size_t i = 0; i < base.size(); ++i) {
      offset[i] *= static_cast<float>(2 * weights_.scale[rows.first + i / k] / quadratic_.columns());
    }
  }

  /// Iterations [first, last) of these rows; their loss above that of `base`, if it is asked for.
  double iterate(RowRange rows, std::size_t first, std::size_t last, bool loss) {
    std::vector<float> slope(rows.count() * weights_.columns);
    for (std::size_t i = first; i < last; ++i) {
      check_stop(control_);
      quadratic_.product(kernels_, rows, soft_.h(rows.first), slope.data());
      const SoftStep step = SoftStep::at(config_, i);
      for (std::size_t m = rows.first; m < rows.last; ++m) {
        soft_.step(m, {0, weights_.columns}, slope.data() + (m - rows.first) * weights_.columns, offset(m), factor(m),
                   certainty_[m], step);
      }
    }
    if (!loss) return 0;
    quadratic_.product(kernels_, rows, soft_.h(rows.first), slope.data());
    return loss_above_base(rows, slope);
  }

  double loss_of_base(RowRange rows) const {
    const auto errors = quadratic_.errors(weights_, soft_.base(), rows);
    return std::accumulate(errors.begin(), errors.end(), 0.0) / quadratic_.columns();
  }

  const float* offset(std::size_t row) const { return offset_.data() + row * weights_.columns; }
  float factor(std::size_t row) const {
    const double scale = weights_.scale[row];
    return static_cast<float>(2 * scale * scale / quadratic_.columns());
  }

  double loss_above_base(RowRange rows, const std::vector<float>& slope) const {
    double sum = 0;
    for (std::size_t m = rows.first; m < rows.last; ++m) {
      const float* p = slope.data() + (m - rows.first) * weights_.columns;
      const float half = factor(m) / 2;
      for (std::size_t k = 0; k < weights_.columns; ++k) {
        sum += static_cast<double>(soft_.h(m)[k]) * (half * p[k] + offset(m)[k]);
      }
    }
    return sum;
  }

  const QuantizedWeights& weights_;
  const Quadratic& quadratic_;
  const FinetuneConfig& config_;
  const Kernels& kernels_;
  const SolveControl& control_;
  SoftRounding soft_;
  std::vector<float> offset_;
  std::vector<float> certainty_;
  std::vector<RowRange> ranges_;
  std::vector<double> losses_;
  double base_loss_ = 0;
};

}  // namespace

Integers adaround(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                  const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control) {
  const Quadratic quadratic(weights, form, bias, config.update_bias);
  if (form.columns == 0) return nearest(weights, {}).integers;
  Problem problem(weights, quadratic, config, kernels, control);
  return run(problem, config, control);
}

}  // namespace detent::finetune
