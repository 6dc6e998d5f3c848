#include "base/error.h"
#include "finetune/solver.h"

namespace detent::finetune {

std::vector<float> best_bias(const QuantizedWeights& weights, const GramForm& form,
                             std::span<const std::int32_t> integers) {
  if (form.columns == 0) throw internal_error("no columns to find a bias from");
  const std::size_t group_rows = weights.rows / form.groups;
  std::vector<float> bias(weights.rows);
  for (std::size_t m = 0; m < weights.rows; ++m) {
    const double* input_sum = form.input_sum.data() + m / group_rows * weights.columns;
    double rest = form.target_sum[m];
    for (std::size_t k = 0; k < weights.columns; ++k) {
      rest -= static_cast<double>(weights.dequantize(m, integers[m * weights.columns + k])) * input_sum[k];
    }
    bias[m] = static_cast<float>(rest / static_cast<double>(form.columns));
  }
  return bias;
}

}  // namespace detent::finetune
