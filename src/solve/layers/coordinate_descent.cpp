// Exact coordinate descent over the integers: with r = Ŵ A − c, the best value of weight j with all others fixed is
// Ŵ_j − r_j / A_jj, rounded to the grid.
#include <algorithm>
#include <span>
#include <utility>

#include "base/parallel.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/shared_rows.h"
#include "solve/layers/solver.h"

namespace detent::solve {
namespace {

constexpr std::size_t kRowsTogether = 16;  // share each reading of a row of the Gram matrix

class Descent {
 public:
  Descent(const QuantizedWeights& weights, const Quadratic& quadratic, const Kernels& kernels, Integers& integers)
      : weights_(weights), quadratic_(quadratic), kernels_(kernels), integers_(integers) {}

  /// One sweep over rows; whether any integer changed.
  bool sweep(RowRange rows) {
    const std::size_t k = weights_.fan_in;
    std::vector<float> values(rows.count() * k);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = weights_.dequantize(rows.first + i / k, i % k, integers_[rows.first * k + i]);
    }
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
  share_for(ranges.size(), control.threads, control.team(), [&](std::size_t i) {
    for (std::size_t sweep = 0; sweep < coordinate_sweeps(config); ++sweep) {
      check_stop(control);
      if (!descent.sweep(ranges[i])) break;
    }
  });
  gather_integers(integers, weights, ranges, control.team());
  return integers;
}

}  // namespace detent::solve
