#include "solve/algebra/scale_fit.h"

#include "base/parallel.h"
#include "solve/algebra/quadratic.h"
#include "solve/algebra/vector_sums.h"

namespace detent::solve {

OutputSums sums_of_outputs_and_targets(const QuantizedWeights& weights, const GramForm& form, const Solution& solution,
                                       std::size_t threads) {
  const std::size_t k = weights.fan_in, group_rows = weights.rows / form.groups;
  const auto n = static_cast<double>(form.positions);
  OutputSums sums{std::vector<RowSums>(weights.rows), form.positions};
  const auto ranges = row_ranges(weights.rows, form.groups, k);
  parallel_for(ranges.size(), threads, [&](std::size_t item) {
    const RowRange rows = ranges[item];
    std::vector<float> w(k);
    for (std::size_t m = rows.first; m < rows.last; ++m) {
      for (std::size_t j = 0; j < k; ++j) w[j] = weights.dequantize(m, j, solution.integers[m * k + j]);
      const double bias = solution.bias.empty() ? 0.0 : static_cast<double>(solution.bias[m]);
      RowSums& row = sums.rows[m];
      row.y = dot_double(form.input_sum.data() + m / group_rows * k, w.data(), k);
      row.t = form.target_sum[m] - n * bias;
      row.yt = dot_double(w.data(), form.cross.data() + m * k, k) - bias * row.y;
      row.tt = form.target_norm[m] - bias * (form.target_sum[m] + row.t);
    }
  });
  return sums;
}

void fit_scales(const OutputSums& sums, bool best_bias, QuantizedWeights& weights, Solution& solution) {
  if (sums.positions == 0) return;
  const auto n = static_cast<double>(sums.positions);
  const std::size_t scales = weights.scale_rows == 0 ? weights.rows : weights.scale_rows;
  for (std::size_t s = 0; s < scales; ++s) {
    double yt = 0, tt = 0;
    for (std::size_t m = s; m < weights.rows; m += scales) {
      const RowSums& row = sums.rows[m];
      yt += row.yt - (best_bias ? row.y * row.t / n : 0);
      tt += row.tt - (best_bias ? row.t * row.t / n : 0);
    }
    const double factor = tt / yt;
    if (!(factor > 0.5 && factor < 2)) continue;
    for (std::size_t m = s; m < weights.rows; m += scales) {
      for (float& scale : std::span(weights.scale).subspan(m * weights.blocks(), weights.blocks())) {
        scale = static_cast<float>(scale * factor);
      }
      if (!best_bias) continue;
      const RowSums& row = sums.rows[m];
      solution.bias[m] = static_cast<float>(solution.bias[m] + (row.t - factor * row.y) / n);
    }
  }
}

}  // namespace detent::solve
