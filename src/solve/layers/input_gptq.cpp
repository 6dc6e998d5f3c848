// GPTQ and coordinate descent on the positions themselves, without the Hessian (Gram matrix XXᵀ). With A = X Xᵀ + λ and
// X of fan_in × N, all that the nearest-plane method of gptq.cpp takes from the factor of A follows from matrices of N
// × N: rounding a block B of weights while the later ones U stay continuous costs, up to the factor λ,
//   d (1 + X_B S⁻¹ X_Bᵀ) dᵀ + 2 r S⁻¹ X_Bᵀ dᵀ        S = λ + X_Uᵀ X_U
// where r = sum of d x over the weights rounded before: a row of N values that stands for all of them.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "solve/algebra/cholesky.h"
#include "solve/algebra/quadratic.h"
#include "solve/algebra/reduced_inputs.h"
#include "solve/algebra/vector_sums.h"
#include "solve/layers/input_descent.h"
#include "solve/layers/input_form.h"
#include "solve/layers/nearest_plane.h"
#include "solve/layers/shared_rows.h"

namespace detent::solve {
namespace {

constexpr std::size_t kBlock = Cholesky::kBlock;
constexpr double kLeastPivot = 1e-7;     // λ keeps the matrices regular
constexpr double kMayLose = 0.5;         // of λ: what positions need not say of a weight, on average
constexpr std::size_t kMostOfFanIn = 5;  // a Gram matrix of higher rank is factored as it is

/// Weights of a block. S is factored anew for each, which takes n³/3, and a block's own matrix 2 n · size² more: both
/// together are least at n / √6.
std::size_t block_size(std::size_t n) { return std::max<std::size_t>((2 * n / 5 + kBlock / 2) / kBlock, 1) * kBlock; }

/// Weights and positions in the order of rounding, the last first.
struct Problem {
  QuantizedWeights weights;
  std::size_t n = 0;  // positions
  double damping = 0;
  std::vector<std::size_t> order;
  std::vector<float> inputs;   // n × fan_in
  std::vector<float> targets;  // rows × n, or empty: what the float weights give

  /// `power`: of what each weight is multiplied with, before anything was lost.
  Problem(const QuantizedWeights& given, ReducedInputs reduced, double lambda, bool by_activation,
          std::span<const double> power)
      : weights(given),
        n(reduced.count),
        damping(lambda + reduced.lost / static_cast<double>(given.fan_in)),
        order(given.fan_in),
        inputs(std::move(reduced.inputs)),
        targets(std::move(reduced.targets)) {
    std::iota(order.rbegin(), order.rend(), std::size_t{0});
    if (by_activation) {
      std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return power[a] < power[b]; });
    }
    sort_rows(inputs);
    sort_rows(weights.values);
    for (const std::size_t j : order) {
      if (given.blocks() > 1) weights.block_of.push_back(static_cast<std::uint32_t>(j / given.block_size()));
    }
  }

  std::size_t fan_in() const noexcept { return weights.fan_in; }

  void sort_rows(std::vector<float>& values) const {
    std::vector<float> line(fan_in());
    for (std::size_t at = 0; at < values.size(); at += fan_in()) {
      for (std::size_t j = 0; j < fan_in(); ++j) line[j] = values[at + order[j]];
      std::copy(line.begin(), line.end(), values.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
};

/// λ, and how much of the squared inputs it hides.
struct Damping {
  double lambda = 1;
  double may_lose = 0;

  Damping(const FinetuneConfig& config, std::span<const double> power) {
    const double total = std::accumulate(power.begin(), power.end(), 0.0);
    if (total > 0) lambda = config.damping * total / static_cast<double>(power.size());
    may_lose = kMayLose * lambda * static_cast<double>(power.size());
  }
};

/// Where the bias is to be the best one: positions and targets without their means.
struct Means {
  std::vector<float> input;
  std::vector<float> target;

  /// Takes them out of n positions.
  Means(std::size_t n, std::vector<float>& inputs, std::vector<float>& targets) {
    const std::size_t k = inputs.size() / n;
    std::vector<double> sums(k);
    for (std::size_t c = 0; c < n; ++c) add_scaled(sums.data(), 1.0, inputs.data() + c * k, k);
    for (const double sum : sums) input.push_back(static_cast<float>(sum / static_cast<double>(n)));
    for (std::size_t c = 0; c < n; ++c) add_scaled(inputs.data() + c * k, -1.0F, input.data(), k);
    for (std::size_t at = 0; at < targets.size(); at += n) {
      target.push_back(static_cast<float>(sum_double(targets.data() + at, n) / static_cast<double>(n)));
      for (std::size_t c = at; c < at + n; ++c) targets[c] -= target.back();
    }
  }
};

/// What rounding a block of weights takes: T = X_B S⁻¹, and the factor of 1 + T X_Bᵀ.
struct Block {
  std::size_t first, last;
  std::vector<float> through;  // T, size() × n
  Cholesky factor;

  std::size_t size() const noexcept { return last - first; }
};

class Solver {
 public:
  Solver(const Problem& problem, std::size_t sweeps, const Kernels& kernels, const SolveControl& control)
      : p_(problem),
        weights_(problem.weights),
        n_(problem.n),
        k_(problem.fan_in()),
        kernels_(kernels),
        view_{problem.inputs.data(), k_, n_, problem.targets.empty() ? nullptr : problem.targets.data()},
        descent_(weights_, view_, kernels, sweeps > 0),
        sweeps_(sweeps),
        places_(k_) {
    std::iota(places_.begin(), places_.end(), std::size_t{0});
    std::vector<float> sums(n_ * n_);  // S
    for (std::size_t i = 0; i < n_; ++i) sums[i * n_ + i] = static_cast<float>(p_.damping);
    for (std::size_t first = 0; first < k_; first += block_size(n_)) {
      check_stop(control);
      const std::size_t last = std::min(first + block_size(n_), k_);
      blocks_.push_back(make_block(first, last, sums, control.threads));
      if (last == k_) break;
      for_row_pieces(n_, control.threads, [&](RowRange r) {  // the lower half is enough
        kernels_.gemm(gemm_of(r.count(), r.last, last - first, true, 1), x(first) + r.first * k_, k_, x(first), k_,
                      sums.data() + r.first * n_, n_);
      });
    }
  }

  /// Integers of rows: the better of GPTQ and nearest rounding, and sweeps from there.
  void solve(RowRange rows, Integers& integers) const {
    const float* values = weights_.values.data() + rows.first * k_;
    Integers plain(rows.count() * k_);
    for (std::size_t i = 0; i < plain.size(); ++i) plain[i] = weights_.quantize(rows.first + i / k_, i % k_, values[i]);
    std::vector<float> rest(rows.count() * n_);
    Integers best = round(rows, values, rest);
    if (view_.targets != nullptr) rest = descent_.residual_of(rows, best);
    descent_.keep_better(rows, best, rest, plain);
    descent_.run(rows, sweeps_, best, std::move(rest));
    std::copy(best.begin(), best.end(), integers.begin() + static_cast<std::ptrdiff_t>(rows.first * k_));
  }

 private:
  const float* x(std::size_t j) const noexcept { return p_.inputs.data() + j; }

  Block make_block(std::size_t first, std::size_t last, const std::vector<float>& sums, std::size_t threads) const {
    const std::size_t size = last - first;
    const Cholesky factor(sums, n_, kernels_, threads, kLeastPivot);
    std::vector<float> through(size * n_);
    std::vector<float> cost(size * size);
    for_row_pieces(size, threads, [&](RowRange r) {
      float* part = through.data() + r.first * n_;
      for (std::size_t c = 0; c < n_; ++c) {
        for (std::size_t j = r.first; j < r.last; ++j) through[j * n_ + c] = x(first)[c * k_ + j];
      }
      factor.solve(part, r.count());
      kernels_.gemm(gemm_of(r.count(), r.last, n_, false), part, n_, x(first), k_, cost.data() + r.first * size, size);
    });
    for (std::size_t i = 0; i < size; ++i) cost[i * size + i] += 1;
    return {first, last, std::move(through), Cholesky(std::move(cost), size, kernels_, 1, kLeastPivot)};
  }

  /// `moved`: zeros, and at the end (Ŵ − W) X: r of all weights.
  Integers round(RowRange rows, const float* wanted, std::vector<float>& moved) const {
    Integers integers(rows.count() * k_);
    std::vector<float> sums(rows.count() * std::min(block_size(n_), k_)), difference(sums.size());
    for (std::size_t b = blocks_.size(); b-- > 0;) {
      const Block& block = blocks_[b];
      const std::size_t size = block.size();
      std::fill(sums.begin(), sums.end(), 0.0F);
      if (b + 1 < blocks_.size()) {
        kernels_.gemm(gemm_of(rows.count(), size, n_, true), moved.data(), n_, block.through.data(), n_, sums.data(),
                      size);
        block.factor.solve_half(sums.data(), rows.count());
      }
      round_block(rows, block, wanted + block.first, sums.data(), difference.data(), integers.data() + block.first);
      kernels_.gemm(gemm_of(rows.count(), n_, size, true, 1), difference.data(), size, x(block.first), k_, moved.data(),
                    n_);
    }
    return integers;
  }

  /// `wanted` and `integers` begin at the block, `sums` and `difference` are of the block alone.
  void round_block(RowRange rows, const Block& block, const float* wanted, const float* sums, float* difference,
                   std::int32_t* integers) const {
    const std::size_t size = block.size();
    std::vector<float> part(rows.count() * kBlock);
    for (std::size_t last = size; last > 0;) {
      const std::size_t first = (last - 1) / kBlock * kBlock;
      block.factor.product_below(difference, rows.count(), first, last, part.data());
      for (std::size_t r = 0; r < rows.count(); ++r) {
        add_scaled(part.data() + r * (last - first), 1.0F, sums + r * size + first, last - first);
      }
      solve::round_block(weights_, rows, block.factor, {first, last}, places_.data() + block.first,
                         {wanted + first, k_}, {part.data(), last - first}, {difference + first, size},
                         {integers + first, k_});
      last = first;
    }
  }

  const Problem& p_;
  const QuantizedWeights& weights_;
  std::size_t n_, k_;
  const Kernels& kernels_;
  InputView view_;
  InputDescent descent_;
  std::size_t sweeps_;
  std::vector<std::size_t> places_;  // of the weights: as they are
  std::vector<Block> blocks_;
};

/// In the order of the layer's weights.
Integers rounded(const Problem& problem, std::size_t sweeps, const Kernels& kernels, const SolveControl& control) {
  const Solver solver(problem, sweeps, kernels, control);
  const std::size_t k = problem.fan_in();
  Integers sorted(problem.weights.values.size()), integers(sorted.size());
  const auto pieces = row_pieces(problem.weights.rows);
  share_for(pieces.size(), control.threads, control.team(), [&](std::size_t i) {
    check_stop(control);
    const RowRange rows = pieces[i];
    solver.solve(rows, sorted);
    for (std::size_t at = rows.first * k; at < rows.last * k; ++at) {
      integers[at - at % k + problem.order[at % k]] = sorted[at];
    }
  });
  gather_integers(integers, problem.weights, pieces, control.team());
  return integers;
}

}  // namespace

Solution solve(const QuantizedWeights& weights, const RawInputs& form, std::span<const float> bias,
               const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control) {
  Solution solution = nearest(weights, bias);
  if (form.positions == 0) return solution;
  const std::size_t n = form.positions, k = weights.fan_in;
  std::vector<float> targets = form.targets, centered;
  InputMatrix inputs{n, k, form.inputs, form.pixels.count > 0 ? &form.pixels : nullptr};
  std::optional<Means> means;
  if (config.update_bias && !bias.empty()) {
    centered = inputs.pixels != nullptr ? im2col(form.pixels) : form.inputs;
    means.emplace(n, centered, targets);
    inputs = {n, k, centered};
  } else {
    for (std::size_t i = 0; i < targets.size() && !bias.empty(); ++i) targets[i] -= bias[i / n];
  }
  const std::vector<double> power = input_powers(inputs);
  const Damping damping(config, power);
  const Problem problem(weights, reduce_inputs(inputs, targets, power, damping.may_lose, kernels, control.threads),
                        damping.lambda, config.activation_order, power);
  solution.integers = rounded(problem, coordinate_sweeps(config), kernels, control);
  for (std::size_t m = 0; m < weights.rows && means; ++m) {
    double mean = means->target[m];
    for (std::size_t j = 0; j < k; ++j) {
      mean -= static_cast<double>(weights.dequantize(m, j, solution.integers[m * k + j])) * means->input[j];
    }
    solution.bias[m] = static_cast<float>(mean);
  }
  return solution;
}

std::optional<Integers> gptq_on_inputs(const QuantizedWeights& weights, const GramForm& form,
                                       const FinetuneConfig& config, const Kernels& kernels,
                                       const SolveControl& control) {
  const std::size_t k = weights.fan_in;
  if (!form.symmetric || !inputs_pay(form.groups, k, config)) return {};
  std::vector<double> power(k);
  for (std::size_t j = 0; j < k; ++j) power[j] = form.gram[j * k + j];
  const Damping damping(config, power);
  auto reduced = inputs_of_gram(form.gram, k, damping.may_lose, k / kMostOfFanIn);
  if (!reduced) return {};
  const Problem problem(weights, std::move(*reduced), damping.lambda, config.activation_order, power);
  return rounded(problem, coordinate_sweeps(config), kernels, control);
}

}  // namespace detent::solve
