#include "solve/layers/input_descent.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/parallel.h"
#include "solve/algebra/reduced_inputs.h"
#include "solve/layers/input_form.h"

namespace detent::solve {
namespace {

constexpr std::size_t kBlock = Cholesky::kBlock;  // weights whose slopes are computed together
constexpr std::size_t kRowsTogether = 64;
constexpr std::size_t kParts = 8;  // of the positions, looked at one after the other

}  // namespace

InputDescent::InputDescent(const QuantizedWeights& weights, const InputView& view, const Kernels& kernels, bool sweeps)
    : weights_(weights), view_(view), kernels_(kernels) {
  if (!sweeps) return;
  double power = 0;
  for (std::size_t first = 0; first < weights.fan_in; first += kBlock) {
    const std::size_t size = std::min(kBlock, weights.fan_in - first);
    const float* x = view.inputs + first;
    Gemm shape = gemm_of(size, size, view.count, false);
    shape.transpose_a = true;
    grams_.emplace_back(size * size);
    kernels.gemm(shape, x, view.leading, x, view.leading, grams_.back().data(), size);
    for (std::size_t j = 0; j < size; ++j) power += grams_.back()[j * size + j];
  }
  ridge_ = descent_ridge(power, weights.fan_in, view.count);
}

/// What is multiplied with the positions: Ŵ, or Ŵ − W where targets are those of W.
std::vector<float> InputDescent::changes(RowRange rows, const Integers& integers) const {
  auto values = dequantized(weights_, rows, integers.data());
  const float* own = weights_.values.data() + rows.first * weights_.fan_in;
  if (view_.targets == nullptr) add_scaled(values.data(), -1.0F, own, values.size());
  return values;
}

/// Sets positions [first, last) of `rest`.
void InputDescent::add_rest(RowRange rows, const std::vector<float>& changes, std::size_t first, std::size_t last,
                            std::vector<float>& rest) const {
  const std::size_t k = weights_.fan_in, n = view_.count;
  const bool aimed = view_.targets != nullptr;
  for (std::size_t r = 0; r < rows.count() && aimed; ++r) {
    const float* target = view_.targets + (rows.first + r) * n;
    for (std::size_t c = first; c < last; ++c) rest[r * n + c] = -target[c];
  }
  kernels_.gemm(gemm_of(rows.count(), last - first, k, true, aimed ? 1.0F : 0.0F), changes.data(), k,
                view_.inputs + first * view_.leading, view_.leading, rest.data() + first, n);
}

std::vector<float> InputDescent::residual_of(RowRange rows, const Integers& integers) const {
  std::vector<float> rest(rows.count() * view_.count);
  add_rest(rows, changes(rows, integers), 0, view_.count, rest);
  return rest;
}

// Squares only add up: a row of `other` that is no better on the positions so far than `best` is on all of them is out.
void InputDescent::keep_better(RowRange rows, Integers& best, std::vector<float>& best_rest,
                               const Integers& other) const {
  const std::size_t k = weights_.fan_in, n = view_.count;
  std::vector<double> ahead(rows.count());  // of `other`
  for (std::size_t r = 0; r < rows.count(); ++r) {
    if (std::equal(&best[r * k], &best[r * k] + k, &other[r * k])) continue;
    ahead[r] = dot_double(&best_rest[r * n], &best_rest[r * n], n);
  }
  const auto is_ahead = [](double a) { return a > 0; };
  const std::vector<float> change = changes(rows, other);
  std::vector<float> other_rest(best_rest.size());
  for (std::size_t part = 0; part < kParts; ++part) {
    if (std::none_of(ahead.begin(), ahead.end(), is_ahead)) return;
    const std::size_t first = part * n / kParts, last = (part + 1) * n / kParts;
    add_rest(rows, change, first, last, other_rest);
    for (std::size_t r = 0; r < rows.count(); ++r) {
      const float* theirs = other_rest.data() + r * n + first;
      ahead[r] -= dot_double(theirs, theirs, last - first);
    }
  }
  for (std::size_t r = 0; r < rows.count(); ++r) {
    if (!is_ahead(ahead[r])) continue;
    std::copy_n(other_rest.data() + r * n, n, best_rest.data() + r * n);
    std::copy_n(other.data() + r * k, k, best.data() + r * k);
  }
}

void InputDescent::run(RowRange rows, std::size_t sweeps, Integers& integers, std::vector<float> rest) const {
  while (sweeps-- > 0 && sweep(rows, integers, rest)) {
  }
}

// The slopes of a block follow from `rest`, and within it from its own part of the Gram matrix.
bool InputDescent::sweep(RowRange rows, Integers& integers, std::vector<float>& rest) const {
  const std::size_t k = weights_.fan_in, n = view_.count;
  std::vector<float> slopes(rows.count() * std::min(kBlock, k)), difference(slopes.size());
  bool changed = false;
  for (std::size_t b = grams_.size(); b-- > 0;) {
    const std::size_t first = b * kBlock, size = std::min(kBlock, k - first);
    const float* x = view_.inputs + first;
    kernels_.gemm(gemm_of(rows.count(), size, n, false), rest.data(), n, x, view_.leading, slopes.data(), size);
    std::fill(difference.begin(), difference.end(), 0.0F);
    bool moved = false;
    for (std::size_t r = 0; r < rows.count(); ++r) {
      moved = sweep_row(rows.first + r, first, grams_[b].data(), size, slopes.data() + r * size,
                        difference.data() + r * size, integers.data() + r * k + first) ||
              moved;
    }
    if (!moved) continue;
    changed = true;
    kernels_.gemm(gemm_of(rows.count(), n, size, true, 1), difference.data(), size, x, view_.leading, rest.data(), n);
  }
  return changed;
}

bool InputDescent::sweep_row(std::size_t row, std::size_t first, const float* gram, std::size_t size, float* slopes,
                             float* difference, std::int32_t* integers) const {
  const float* values = weights_.values.data() + row * weights_.fan_in + first;
  bool changed = false;
  for (std::size_t j = size; j-- > 0;) {
    const float* line = gram + j * size;
    if (!(line[j] > 0)) continue;
    const float off = weights_.dequantize(row, first + j, integers[j]) - values[j];
    const float step = (slopes[j] + ridge_ * off) / (line[j] + ridge_);
    const std::int32_t change = weights_.best_change(row, first + j, integers[j], step);
    if (change == 0) continue;
    changed = true;
    integers[j] += change;
    const float moved = weights_.scale_of(row, first + j) * static_cast<float>(change);
    difference[j] += moved;
    add_scaled(slopes, moved, line, size);
  }
  return changed;
}

std::size_t descent_positions(const LayerGeometry& geometry) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  constexpr std::size_t kTimesFanIn = 2, kLeast = 4096;  // with fewer the integers fit just these
  const auto fan_in = static_cast<std::size_t>(geometry.fan_in());
  const std::size_t rows = static_cast<std::size_t>(geometry.groups) * fan_in;
  const std::size_t fit = kBytes / sizeof(float) / (rows + static_cast<std::size_t>(geometry.outputs));
  return std::max<std::size_t>(std::min(fit, std::max(kTimesFanIn * fan_in, kLeast)), 1);
}

std::vector<std::size_t> descent_positions(const LayerGeometry& geometry, const Shape& input_shape, std::size_t samples,
                                           std::size_t sample, std::uint64_t seed) {
  const std::size_t most = std::max<std::size_t>(descent_positions(geometry) / samples, 1);
  return draw_positions(Patches(geometry, input_shape).positions(), most, seed, sample);
}

float descent_ridge(double power, std::size_t fan_in, std::uint64_t positions) {
  const double open = 1 - static_cast<double>(positions) / static_cast<double>(fan_in);
  return static_cast<float>(std::max(open, 0.0) * power / static_cast<double>(fan_in));
}

namespace {

/// Positions of all samples, spread over their positions, in one place.
struct Gathered {
  std::size_t count = 0;
  std::vector<float> inputs;   // count × (groups · fan_in)
  std::vector<float> targets;  // outputs × count, without the bias
};

Gathered gather(const LayerGeometry& geometry, LayerSamples& samples, std::span<const float> bias,
                const FinetuneConfig& config, const SolveControl& control) {
  Gathered all;
  const std::size_t rows = static_cast<std::size_t>(geometry.groups * geometry.fan_in());
  const auto outputs = static_cast<std::size_t>(geometry.outputs);
  std::vector<float> by_position;  // targets
  for (std::size_t s = 0; s < samples.count(); ++s) {
    check_stop(control);
    const SampleRef sample = samples.get(s);
    const Patches patches(geometry, sample.input_shape);
    const auto positions = descent_positions(geometry, sample.input_shape, samples.count(), s, config.seed);
    const std::size_t first = std::exchange(all.count, all.count + positions.size());
    all.inputs.resize(all.count * rows);
    by_position.resize(all.count * outputs);
    std::vector<Patches::Place> inputs, targets;
    for (std::size_t i = first; i < all.count; ++i) {
      inputs.push_back({all.inputs.data() + i * rows, 1});
      targets.push_back({by_position.data() + i * outputs, 1});
    }
    patches.gather(sample.input.data(), {0, rows}, positions, inputs);
    patches.gather_outputs(sample.target.data(), positions, targets);
  }
  all.targets.resize(by_position.size());
  for (std::size_t m = 0; m < outputs; ++m) {
    const float b = bias.empty() ? 0.0F : bias[m];
    for (std::size_t c = 0; c < all.count; ++c) all.targets[m * all.count + c] = by_position[c * outputs + m] - b;
  }
  return all;
}

}  // namespace

bool uses_sample_descent(const FinetuneConfig& config) {
  return config.drop_ratio >= 1 && coordinate_sweeps(config) > 0;
}

Integers descend_on_samples(const QuantizedWeights& weights, const LayerGeometry& geometry, const Solution& solution,
                            LayerSamples& samples, const FinetuneConfig& config, const Kernels& kernels,
                            const SolveControl& control) {
  Integers result = solution.integers;
  const Gathered all = gather(geometry, samples, solution.bias, config, control);
  if (all.count == 0) return result;
  const Integers plain = nearest(weights, {}).integers;
  const auto groups = static_cast<std::size_t>(geometry.groups);
  const std::size_t group_rows = weights.rows / groups, k = weights.fan_in;
  const std::size_t pieces = (group_rows + kRowsTogether - 1) / kRowsTogether;
  std::vector<RowRange> ranges;
  for (std::size_t i = 0; i < groups * pieces; ++i) {
    const std::size_t end = (i / pieces + 1) * group_rows, first = i / pieces * group_rows + i % pieces * kRowsTogether;
    ranges.push_back({first, std::min(first + kRowsTogether, end)});
  }
  const auto team = control.team();
  for (std::size_t g = 0; g < groups; ++g) {
    const InputView view{all.inputs.data() + g * k, groups * k, all.count, all.targets.data()};
    const InputDescent descent(weights, view, kernels);
    parallel_for(pieces, control.threads, [&](std::size_t piece) {
      check_stop(control);
      if (!takes(g * pieces + piece, team)) return;
      const RowRange rows = ranges[g * pieces + piece];
      const auto begin = static_cast<std::ptrdiff_t>(rows.first * k), end = static_cast<std::ptrdiff_t>(rows.last * k);
      Integers mine(result.begin() + begin, result.begin() + end);
      std::vector<float> rest = descent.residual_of(rows, mine);
      descent.keep_better(rows, mine, rest, {plain.begin() + begin, plain.begin() + end});
      descent.run(rows, coordinate_sweeps(config), mine, std::move(rest));
      std::copy(mine.begin(), mine.end(), result.begin() + begin);
    });
  }
  gather_integers(result, weights, ranges, team);
  return result;
}

namespace {

/// A value for each row and each weight of a block; rows are `stride` apart.
template <class T>
struct BlockOf {
  T* values = nullptr;
  std::size_t stride = 0;
  T* row(std::size_t r) const noexcept { return values + r * stride; }
};

/// Rounds the weights `block` of some rows. `sums` holds what the weights behind the block add to its entries, and the
/// entries afterwards.
void round_block(const QuantizedWeights& weights, RowRange rows, const Cholesky& factor, Patches::Range block,
                 const std::size_t* order, BlockOf<const float> wanted, BlockOf<float> sums, BlockOf<float> difference,
                 std::int32_t* integers) {
  constexpr std::size_t kTogether = 8;  // each weight waits for the one before it, but rows do not for each other
  for (std::size_t at = 0; at < rows.count(); at += kTogether) {
    for (std::size_t j = block.last; j-- > block.first;) {
      const std::size_t c = j - block.first;
      const float* line = factor.row(j) + block.first;
      const std::size_t weight = order[j];
      for (std::size_t r = at; r < std::min(at + kTogether, rows.count()); ++r) {
        const std::size_t row = rows.first + r;
        const float target = wanted.row(r)[c];
        const std::int32_t q = weights.quantize(row, weight, target - sums.row(r)[c] / factor.diagonal(j));
        const float change = weights.dequantize(row, weight, q) - target;
        integers[r * weights.fan_in + weight] = q;
        difference.row(r)[c] = change;
        add_scaled(sums.row(r), change, line, c + 1);
      }
    }
  }
}

}  // namespace

void round_to_planes(const QuantizedWeights& weights, RowRange rows, const Cholesky& factor, const std::size_t* order,
                     const float* wanted, std::size_t stride, const float* more, float* difference,
                     std::int32_t* integers, std::vector<double>* errors) {
  const std::size_t n = factor.size();
  std::vector<float> sums(rows.count() * kBlock);
  for (std::size_t last = n; last > 0;) {
    const std::size_t first = (last - 1) / kBlock * kBlock, size = last - first;
    factor.product_below(difference, rows.count(), first, last, sums.data());
    for (std::size_t r = 0; r < rows.count() && more != nullptr; ++r)
      add_scaled(sums.data() + r * size, 1.0F, more + r * n + first, size);
    round_block(weights, rows, factor, {first, last}, order, {wanted + first, stride}, {sums.data(), size},
                {difference + first, n}, integers);
    for (std::size_t r = 0; r < rows.count() && errors != nullptr; ++r)
      (*errors)[r] += dot_double(sums.data() + r * size, sums.data() + r * size, size);
    last = first;
  }
}

// GPTQ and coordinate descent on the positions themselves, without the Hessian (Gram matrix XXᵀ). With A = X Xᵀ + λ and
// X of fan_in × N, all that the nearest-plane method of gptq.cpp takes from the factor of A follows from matrices of N
// × N: rounding a block B of weights while the later ones U stay continuous costs, up to the factor λ,
//   d (1 + X_B S⁻¹ X_Bᵀ) dᵀ + 2 r S⁻¹ X_Bᵀ dᵀ        S = λ + X_Uᵀ X_U
// where r = sum of d x over the weights rounded before: a row of N values that stands for all of them.

namespace {

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
        order(rounding_order({power.begin(), power.end()}, power.size(), by_activation)),
        inputs(std::move(reduced.inputs)),
        targets(std::move(reduced.targets)) {
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
      round_to_planes(weights_, rows, block.factor, places_.data() + block.first, wanted + block.first, k_, sums.data(),
                      difference.data(), integers.data(), nullptr);
      kernels_.gemm(gemm_of(rows.count(), n_, size, true, 1), difference.data(), size, x(block.first), k_, moved.data(),
                    n_);
    }
    return integers;
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
  solve_rows(integers, problem.weights, pieces, control, [&](RowRange rows) {
    solver.solve(rows, sorted);
    for (std::size_t at = rows.first * k; at < rows.last * k; ++at) {
      integers[at - at % k + problem.order[at % k]] = sorted[at];
    }
  });
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
  auto reduced = reduce_inputs(inputs, targets, power, damping.may_lose, kernels, control.threads);
  if (control.spent != nullptr) *control.spent = std::vector<float>();
  const Problem problem(weights, std::move(reduced), damping.lambda, config.activation_order, power);
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
  if (control.spent != nullptr) *control.spent = std::vector<float>();
  const Problem problem(weights, std::move(*reduced), damping.lambda, config.activation_order, power);
  return rounded(problem, coordinate_sweeps(config), kernels, control);
}

}  // namespace detent::solve
