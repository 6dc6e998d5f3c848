#include "finetune/solver.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
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
    solution.integers = better_rows(weights, form, bias, config, std::move(solution.integers), found, control.threads);
  }
  solution.integers = coordinate_descent(weights, form, bias, std::move(solution.integers), config, kernels, control);
  if (config.update_bias) solution.bias = best_bias(weights, form, solution.integers);
  return solution;
}

Integers better_rows(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
                     const FinetuneConfig& config, Integers first, const Integers& second, std::size_t threads) {
  const Quadratic quadratic(weights, form, bias, config.update_bias);
  const auto ranges = row_ranges(weights.rows, form.groups, weights.columns);
  parallel_for(ranges.size(), threads, [&](std::size_t i) {
    const auto errors = quadratic.errors(weights, first, ranges[i]);
    const auto others = quadratic.errors(weights, second, ranges[i]);
    for (std::size_t r = 0; r < ranges[i].count(); ++r) {
      if (!(others[r] < errors[r])) continue;
      const auto at = static_cast<std::ptrdiff_t>((ranges[i].first + r) * weights.columns);
      std::copy_n(second.begin() + at, weights.columns, first.begin() + at);
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
