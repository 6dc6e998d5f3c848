#include "base/error.h"
#include "solve/layers/solver.h"

namespace detent::solve {

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
