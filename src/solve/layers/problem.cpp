#include "solve/layers/problem.h"

#include <cstdlib>

#include "quantization/pairs.h"
#include "solve/algebra/quadratic.h"

namespace detent::solve {

Solution nearest(const QuantizedWeights& weights, std::span<const float> bias) {
  Solution solution;
  solution.bias.assign(bias.begin(), bias.end());
  solution.integers.resize(weights.rows * weights.fan_in);
  for (std::size_t m = 0, at = 0; m < weights.rows; ++m) {
    for (std::size_t k = 0; k < weights.fan_in; ++k, ++at) {
      solution.integers[at] = weights.quantize(m, k, weights.values[at]);
    }
  }
  return solution;
}

void limit_pair_sums(const QuantizedWeights& weights, std::vector<std::int32_t>& integers) {
  for (std::size_t m = 0; m < weights.rows; ++m) {
    const std::size_t begin = m * weights.fan_in;
    // How far the integer is beyond its weight, away from zero.
    const auto beyond = [&](std::size_t k) {
      const float exact = weights.values[begin + k] / weights.scale_of(m, k);
      const auto q = static_cast<float>(integers[begin + k]);
      return q < 0 ? exact - q : q - exact;
    };
    for (const auto& [first, second] : weights.pairs) {
      std::int32_t& a = integers[begin + first];
      std::int32_t& b = integers[begin + second];
      while (a != 0 && b != 0 && (a < 0) == (b < 0) && std::abs(a + b) > quantization::kMostOfPair) {
        (beyond(first) > beyond(second) ? a : b) += a < 0 ? 1 : -1;
      }
    }
  }
}

std::vector<float> relative_scales(const QuantizedWeights& weights) {
  std::vector<float> relative(weights.scale.size());
  for (std::size_t block = 0; block < relative.size(); ++block) relative[block] = weights.relative_scale(block);
  return relative;
}

double mean_squared_output_error(const QuantizedWeights& weights, const GramForm& form, const Solution& solution) {
  const Quadratic quadratic(weights, form, solution.bias, false);
  double sum = 0;
  for (const double error : quadratic.errors(weights, solution.integers, {0, weights.rows})) sum += error;
  return form.positions == 0 ? 0 : sum / static_cast<double>(form.positions) / static_cast<double>(weights.rows);
}

}  // namespace detent::solve
