#include "solve/layers/input_descent.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "solve/algebra/cholesky.h"
#include "solve/algebra/vector_sums.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/shared_rows.h"

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
  const std::size_t k = weights_.fan_in;
  const float* own = view_.targets == nullptr ? weights_.values.data() + rows.first * k : nullptr;
  std::vector<float> values(integers.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = weights_.dequantize(rows.first + i / k, i % k, integers[i]) - (own == nullptr ? 0.0F : own[i]);
  }
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

}  // namespace detent::solve
