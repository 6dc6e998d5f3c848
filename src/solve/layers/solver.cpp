#include "solve/layers/solver.h"

#include <algorithm>
#include <utility>

#include "solve/solvers.h"

namespace detent::solve {
namespace {

class OnCpu final : public GramMethods {
 public:
  OnCpu(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias, const Kernels& kernels,
        const SolveControl& control)
      : weights_(weights), form_(form), bias_(bias), kernels_(kernels), control_(control) {}

  Integers integers(const FinetuneConfig& config) override {
    return find_solver(config.solver)->solve(weights_, form_, bias_, config, kernels_, control_);
  }
  Integers better_rows(const FinetuneConfig& config, Integers first, const Integers& second) override {
    return solve::better_rows(weights_, form_, bias_, config, std::move(first), second, kernels_, control_);
  }
  Integers coordinate_descent(const FinetuneConfig& config, Integers start) override {
    return solve::coordinate_descent(weights_, form_, bias_, std::move(start), config, kernels_, control_);
  }

 private:
  const QuantizedWeights& weights_;
  const GramForm& form_;
  std::span<const float> bias_;
  const Kernels& kernels_;
  const SolveControl& control_;
};

}  // namespace

Solution solve(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
               const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control) {
  OnCpu methods(weights, form, bias, kernels, control);
  return solve(weights, form, bias, config, methods);
}

Solution solve(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
               const FinetuneConfig& given, GramMethods& methods) {
  FinetuneConfig config = given;
  config.update_bias = given.update_bias && !bias.empty() && form.positions > 0;
  Solution solution = nearest(weights, bias);
  if (const Solver* solver = find_solver(config.solver)) {
    Integers found = methods.integers(config);
    const bool compared = solver->takes_symmetric_form && form.symmetric;
    solution.integers = compared ? std::move(found) : methods.better_rows(config, std::move(solution.integers), found);
  }
  solution.integers = methods.coordinate_descent(config, std::move(solution.integers));
  if (config.update_bias) solution.bias = best_bias(weights, form, solution.integers);
  return solution;
}

// With d = Ŵ₂ − Ŵ₁ the error changes by d A dᵀ + 2 d (Ŵ₁ A − c)ᵀ: two products of floats that do not cancel, unlike the
// errors themselves.
Integers better_rows(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                     const FinetuneConfig& config, Integers first, const Integers& second, const Kernels& kernels,
                     const SolveControl& control) {
  const Quadratic quadratic(weights, form, bias, config.update_bias);
  const auto ranges = row_ranges(weights.rows, form.groups, weights.fan_in);
  const std::size_t k = weights.fan_in;
  solve_rows(first, weights, ranges, control, [&](RowRange rows) {
    const std::size_t begin = rows.first * k;
    const auto values = dequantized(weights, rows, first.data() + begin);
    std::vector<float> change(values.size()), slope(values.size()), product(values.size());
    for (std::size_t at = 0; at < change.size(); ++at) {
      change[at] =
          weights.scale_of(rows.first + at / k, at % k) * static_cast<float>(second[begin + at] - first[begin + at]);
    }
    quadratic.residual(kernels, rows, values.data(), slope.data());
    quadratic.product(kernels, rows, change.data(), product.data());
    for (std::size_t r = 0; r < rows.count(); ++r) {
      const float* d = change.data() + r * k;
      const double more = dot_double(d, product.data() + r * k, k) + 2 * dot_double(d, slope.data() + r * k, k);
      if (!(more < 0)) continue;
      const auto at = static_cast<std::ptrdiff_t>(begin + r * k);
      std::copy_n(second.begin() + at, k, first.begin() + at);
    }
  });
  return first;
}

std::vector<std::size_t> interval_ends(std::size_t num_iterations) {
  const std::size_t step = std::max<std::size_t>((num_iterations + 9) / 10, 1);
  std::vector<std::size_t> ends;
  for (std::size_t end = step; end < num_iterations; end += step) ends.push_back(end);
  if (num_iterations > 0) ends.push_back(num_iterations);
  return ends;
}

void check_stop(const SolveControl& control) {
  if (control.stop.stop_requested()) throw interrupted();
}

// Exact coordinate descent over the integers: with r = Ŵ A − c, the best value of weight j with all others fixed is
// Ŵ_j − r_j / A_jj, rounded to the grid.

namespace {

constexpr std::size_t kRowsTogether = 16;  // share each reading of a row of the Gram matrix

class Descent {
 public:
  Descent(const QuantizedWeights& weights, const Quadratic& quadratic, const Kernels& kernels, Integers& integers)
      : weights_(weights), quadratic_(quadratic), kernels_(kernels), integers_(integers) {}

  /// One sweep over rows; whether any integer changed.
  bool sweep(RowRange rows) {
    const std::size_t k = weights_.fan_in;
    const auto values = dequantized(weights_, rows, integers_.data() + rows.first * k);
    std::vector<float> residual(values.size());  // anew in each sweep: it does not drift
    quadratic_.residual(kernels_, rows, values.data(), residual.data());
    bool changed = false;
    for (std::size_t first = rows.first; first < rows.last;) {
      const std::size_t group_end = (quadratic_.group_of(first) + 1) * quadratic_.group_rows();
      const RowRange some{first, std::min({first + kRowsTogether, group_end, rows.last})};
      changed = descend(some, residual.data() + (first - rows.first) * k) || changed;
      first = some.last;
    }
    return changed;
  }

 private:
  // Rows of one group.
  bool descend(RowRange rows, float* residual) {
    const std::size_t k = weights_.fan_in;
    const std::size_t group = quadratic_.group_of(rows.first);
    bool changed = false;
    for (std::size_t j = 0; j < k; ++j) {
      const float diagonal = quadratic_.diagonal(group, j);
      if (!(diagonal > 0)) continue;
      for (std::size_t m = rows.first; m < rows.last; ++m) {
        float* row = residual + (m - rows.first) * k;
        const std::int32_t change = weights_.best_change(m, j, integers_[m * k + j], row[j] / diagonal);
        if (change == 0) continue;
        changed = true;
        integers_[m * k + j] += change;
        quadratic_.add_row(group, j, weights_.scale_of(m, j) * static_cast<float>(change), row);
      }
    }
    return changed;
  }

  const QuantizedWeights& weights_;
  const Quadratic& quadratic_;
  const Kernels& kernels_;
  Integers& integers_;
};

}  // namespace

Integers coordinate_descent(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                            Integers start, const FinetuneConfig& config, const Kernels& kernels,
                            const SolveControl& control) {
  if (coordinate_sweeps(config) == 0 || form.positions == 0) return start;
  const Quadratic quadratic(weights, form, bias, config.update_bias);
  Integers integers = std::move(start);
  Descent descent(weights, quadratic, kernels, integers);
  const auto ranges = row_ranges(weights.rows, form.groups, weights.fan_in);
  solve_rows(integers, weights, ranges, control, [&](RowRange rows) {
    for (std::size_t sweep = 0; sweep < coordinate_sweeps(config) && descent.sweep(rows); ++sweep) check_stop(control);
  });
  return integers;
}

std::vector<float> best_bias(const QuantizedWeights& weights, const GramForm& form,
                             std::span<const std::int32_t> integers) {
  if (form.positions == 0) throw internal_error("no positions to find a bias from");
  const std::size_t group_rows = weights.rows / form.groups;
  std::vector<float> bias(weights.rows);
  for (std::size_t m = 0; m < weights.rows; ++m) {
    const double* input_sum = form.input_sum.data() + m / group_rows * weights.fan_in;
    double rest = form.target_sum[m];
    for (std::size_t k = 0; k < weights.fan_in; ++k) {
      rest -= static_cast<double>(weights.dequantize(m, k, integers[m * weights.fan_in + k])) * input_sum[k];
    }
    bias[m] = static_cast<float>(rest / static_cast<double>(form.positions));
  }
  return bias;
}

}  // namespace detent::solve
