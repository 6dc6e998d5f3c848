// GPTQ as the nearest-plane method. A is the Hessian (Gram matrix XXᵀ of the inputs), damped. With A = L Lᵀ the error
// of Ŵ is |(Ŵ − W*) L|², and entry j of that product depends on (Ŵ − W*)_j L_jj and on weights after j only. Weights
// are rounded from the last to the first, each so that its entry becomes smallest. GPTQ does the same with the factor
// of A⁻¹; this needs no inverse.
#include <algorithm>
#include <utility>
#include <vector>

#include "base/parallel.h"
#include "solve/algebra/kernels.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/input_descent.h"
#include "solve/layers/input_form.h"
#include "solve/layers/solver.h"
#include "solve/solvers.h"

namespace detent::solve {
namespace {

constexpr std::size_t kRowsTogether = 128;
constexpr std::size_t kLargeGroups = 4;  // up to as many, threads share each group; beyond, each has its own

/// One group's damped matrix, its weights in an order whose last is rounded first.
class Group {
 public:
  /// `spent`: the matrix itself where only its factor will be needed, else null.
  Group(const QuantizedWeights& weights, const Quadratic& quadratic, std::size_t group, const FinetuneConfig& config,
        const Kernels& kernels, std::size_t threads, std::vector<float>* spent)
      : weights_(weights),
        quadratic_(quadratic),
        kernels_(kernels),
        order_(order(quadratic, group, config.activation_order)),
        factor_(damped(quadratic, group, config.damping, spent), weights.fan_in, kernels, threads) {}

  /// Integers of rows of this group. `best`: for W*, the continuous weights that are best for these inputs, else for W.
  /// `errors` gets the damped error |(Ŵ − W*) L|² of each row; it may be null.
  void round(RowRange rows, bool best, Integers& integers, std::vector<double>* errors) const {
    const std::vector<float> targets = targets_of(rows, best);
    const std::size_t n = order_.size();
    std::vector<float> difference(targets.size());  // Ŵ − W*
    if (errors != nullptr) errors->assign(rows.count(), 0);
    round_to_planes(weights_, rows, factor_, order_.data(), targets.data(), n, nullptr, difference.data(),
                    integers.data() + rows.first * n, errors);
  }

  /// Rows whose nearest rounding has an error below `errors`, the damped ones of `integers`, go back to it. Damping
  /// only helps nearest rounding, which is the closest to W: no row's error is above its own. Squares only add up, and
  /// a few blocks mostly tell that a row stays.
  void fall_back(RowRange rows, std::vector<double> errors, Integers& integers) const {
    const std::size_t n = order_.size();
    std::vector<float> difference(rows.count() * n);
    for (std::size_t i = 0; i < difference.size(); ++i) {
      const std::size_t row = rows.first + i / n, at = row * n + order_[i % n];
      difference[i] =
          weights_.dequantize(row, order_[i % n], weights_.quantize(row, order_[i % n], weights_.values[at])) -
          weights_.values[at];
    }
    std::vector<float> block(rows.count() * Cholesky::kBlock);
    const auto is_ahead = [](double error) { return error > 0; };
    for (std::size_t last = n; last > 0;) {
      if (std::none_of(errors.begin(), errors.end(), is_ahead)) return;
      const std::size_t first = (last - 1) / Cholesky::kBlock * Cholesky::kBlock;
      factor_.product_below(difference.data(), rows.count(), first, last, block.data());
      for (std::size_t r = 0; r < rows.count(); ++r) {
        float* sums = block.data() + r * (last - first);
        for (std::size_t j = last; j-- > first;) {
          add_scaled(sums, difference[r * n + j], factor_.row(j) + first, j + 1 - first);
        }
        errors[r] -= square(sums, last - first);
      }
      last = first;
    }
    for (std::size_t r = 0; r < rows.count(); ++r) {
      if (!is_ahead(errors[r])) continue;
      const std::size_t begin = (rows.first + r) * n;
      for (std::size_t at = begin; at < begin + n; ++at) {
        integers[at] = weights_.quantize(rows.first + r, at - begin, weights_.values[at]);
      }
    }
  }

 private:
  static double square(const float* values, std::size_t count) { return dot_double(values, values, count); }

  static std::vector<std::size_t> order(const Quadratic& quadratic, std::size_t group, bool by_activation) {
    std::vector<double> diagonal;
    for (std::size_t j = 0; j < quadratic.fan_in(); ++j) diagonal.push_back(quadratic.diagonal(group, j));
    return rounding_order(diagonal, diagonal.size(), by_activation);
  }

  /// Rows and columns of a matrix in this group's order, in place: rows along the cycles that the order consists of.
  void sort(std::vector<float>& matrix) const {
    const std::size_t n = order_.size();
    std::vector<float> line(n);
    std::vector<char> sorted(n);
    for (std::size_t first = 0; first < n; ++first) {
      if (sorted[first] != 0) continue;
      std::copy_n(matrix.data() + first * n, n, line.data());
      std::size_t at = first;
      for (; sorted[at] = 1, order_[at] != first; at = order_[at])
        std::copy_n(matrix.data() + order_[at] * n, n, matrix.data() + at * n);
      std::copy_n(line.data(), n, matrix.data() + at * n);
    }
    for (std::size_t i = 0; i < n; ++i) {
      float* row = matrix.data() + i * n;
      std::copy_n(row, n, line.data());
      for (std::size_t j = 0; j <= i; ++j) row[j] = line[order_[j]];
    }
  }

  /// The lower half.
  std::vector<float> damped(const Quadratic& quadratic, std::size_t group, double damping,
                            std::vector<float>* spent) const {
    const std::size_t n = order_.size();
    std::vector<float> sorted;
    if (spent != nullptr) {
      sorted.swap(*spent);
    } else {
      sorted.resize(n * n);
      for (std::size_t i = 0; i < n; ++i) quadratic.row(group, i, sorted.data() + i * n);
    }
    sort(sorted);
    double trace = 0;
    for (std::size_t i = 0; i < n; ++i) trace += sorted[i * n + i];
    const auto more = static_cast<float>(damping * trace / static_cast<double>(n));
    for (std::size_t i = 0; i < n; ++i) sorted[i * n + i] += more;
    return sorted;
  }

  /// W* = W − (W A − c) (A + λ)⁻¹, the minimum of error + λ |W* − W|², with weights in this group's order.
  std::vector<float> targets_of(RowRange rows, bool best) const {
    const std::size_t n = order_.size();
    const float* values = weights_.values.data() + rows.first * n;
    std::vector<float> residual(best ? rows.count() * n : 0);
    if (best) quadratic_.residual(kernels_, rows, values, residual.data());
    std::vector<float> targets(rows.count() * n);
    for (std::size_t i = 0; i < targets.size() && best; ++i) targets[i] = -residual[i / n * n + order_[i % n]];
    if (best) factor_.solve(targets.data(), rows.count());
    for (std::size_t i = 0; i < targets.size(); ++i) targets[i] += values[i / n * n + order_[i % n]];
    return targets;
  }

  const QuantizedWeights& weights_;
  const Quadratic& quadratic_;
  const Kernels& kernels_;
  std::vector<std::size_t> order_;
  Cholesky factor_;
};

// Of each group as many.
std::vector<RowRange> pieces_of(std::size_t groups, std::size_t group_rows) {
  std::vector<RowRange> pieces;
  for (std::size_t end = group_rows; end <= groups * group_rows; end += group_rows) {
    for (std::size_t first = end - group_rows; first < end; first += kRowsTogether)
      pieces.push_back({first, std::min(first + kRowsTogether, end)});
  }
  return pieces;
}

}  // namespace

Integers gptq(const QuantizedWeights& weights, const GramForm& form, std::span<const float> bias,
              const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control) {
  if (form.positions == 0) return nearest(weights, {}).integers;
  if (auto integers = gptq_on_inputs(weights, form, config, kernels, control)) return std::move(*integers);
  const Quadratic quadratic(weights, form, bias, config.update_bias);
  Integers plain(weights.values.size());
  Integers best(form.symmetric ? 0 : plain.size());
  const bool large = form.groups <= kLargeGroups;
  const auto pieces = pieces_of(form.groups, quadratic.group_rows());
  const std::size_t of_group = pieces.size() / form.groups;
  const auto team = control.team();
  parallel_for(form.groups, large ? 1 : control.threads, [&](std::size_t g) {
    std::vector<RowRange> mine;
    for (std::size_t i = g * of_group; i < (g + 1) * of_group; ++i) {
      if (takes(i, team)) mine.push_back(pieces[i]);
    }
    if (mine.empty()) return;
    const std::size_t threads = large ? control.threads : 1;
    const bool in_place = form.symmetric && form.groups == 1;
    const Group group(weights, quadratic, g, config, kernels, threads, in_place ? control.spent : nullptr);
    parallel_for(mine.size(), threads, [&](std::size_t piece) {
      check_stop(control);
      const RowRange rows = mine[piece];
      std::vector<double> errors;
      group.round(rows, false, plain, form.symmetric ? &errors : nullptr);
      if (form.symmetric) {
        group.fall_back(rows, std::move(errors), plain);
      } else {
        group.round(rows, true, best, nullptr);
      }
    });
  });
  gather_integers(plain, weights, pieces, team);
  if (form.symmetric) return plain;
  gather_integers(best, weights, pieces, team);
  return better_rows(weights, form, bias, config, std::move(plain), best, kernels, control);
}

namespace solvers {
namespace {

/// A factor of each group's matrix and products with it.
SolverCost cost(const SolverSizes& s, const FinetuneConfig&) {
  constexpr double kRows = 64;  // that one thread works on
  const double at_once = s.groups <= 4 ? 1 : std::min(s.groups, static_cast<double>(s.threads));
  return {s.matrix() * s.fan_in / 3 + 4 * s.product(), at_once * s.fan_in * (s.fan_in + Cholesky::kBlock) +
                                                           static_cast<double>(s.threads) * kRows * 8 * s.fan_in +
                                                           s.weights};
}

}  // namespace

/// Frantar et al. 2022, arXiv:2210.17323. Its integers are the best for damped sums; sweeps afterwards would fit them
/// to these very positions: errors on others grew by 1 %.
extern const Solver gptq{.id = WeightSolver::gptq,
                         .name = "GPTQ",
                         .solve = solve::gptq,
                         .cost = cost,
                         .has_input_form = true,
                         .takes_symmetric_form = true,
                         .coordinate_sweeps = 0};

}  // namespace solvers

}  // namespace detent::solve
