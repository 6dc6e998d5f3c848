#include "finetune/solver.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "finetune/lanes.h"
#include "finetune/quadratic.h"

namespace detent::finetune {
namespace {

Integers first_integers(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                        const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control) {
  switch (config.rounding) {
    case Rounding::nearest: break;
    case Rounding::adaround: return adaround(weights, form, bias, config, kernels, control);
    case Rounding::adaquant: return adaquant(weights, form, bias, config, kernels, control);
    case Rounding::gptq: return gptq(weights, form, bias, config, kernels, control);
  }
  return nearest(weights, {}).integers;
}

}  // namespace

Solution solve(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
               const FinetuneConfig& given, const Kernels& kernels, const SolveControl& control) {
  FinetuneConfig config = given;
  config.update_bias = given.update_bias && !bias.empty() && form.columns > 0;
  Solution solution = nearest(weights, bias);
  if (config.rounding != Rounding::nearest) {
    Integers found = first_integers(weights, form, bias, config, kernels, control);
    solution.integers =
        better_rows(weights, form, bias, config, std::move(solution.integers), found, kernels, control.threads);
  }
  solution.integers = coordinate_descent(weights, form, bias, std::move(solution.integers), config, kernels, control);
  if (config.update_bias) solution.bias = best_bias(weights, form, solution.integers);
  return solution;
}

// With d = Ŵ₂ − Ŵ₁ the error changes by d A dᵀ + 2 d (Ŵ₁ A − c)ᵀ: two products of floats that do not cancel, unlike the
// errors themselves.
Integers better_rows(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                     const FinetuneConfig& config, Integers first, const Integers& second, const Kernels& kernels,
                     std::size_t threads) {
  const Quadratic quadratic(weights, form, bias, config.update_bias);
  const auto ranges = row_ranges(weights.rows, form.groups, weights.columns);
  const std::size_t k = weights.columns;
  parallel_for(ranges.size(), threads, [&](std::size_t i) {
    const RowRange rows = ranges[i];
    const std::size_t begin = rows.first * k;
    std::vector<float> values(rows.count() * k), change(values.size()), slope(values.size()), product(values.size());
    for (std::size_t at = 0; at < values.size(); ++at) {
      const std::size_t row = rows.first + at / k;
      values[at] = weights.dequantize(row, first[begin + at]);
      change[at] = weights.scale[row] * static_cast<float>(second[begin + at] - first[begin + at]);
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

std::vector<std::size_t> checkpoints(std::size_t num_iterations) {
  const std::size_t step = std::max<std::size_t>((num_iterations + 9) / 10, 1);
  std::vector<std::size_t> ends;
  for (std::size_t end = step; end < num_iterations; end += step) ends.push_back(end);
  if (num_iterations > 0) ends.push_back(num_iterations);
  return ends;
}

void check_stop(const SolveControl& control) {
  if (control.stop.stop_requested()) throw interrupted();
}

}  // namespace detent::finetune
