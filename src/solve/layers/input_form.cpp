#include "solve/layers/input_form.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/mini_batches.h"
#include "solve/solvers.h"

namespace detent::solve {
namespace {

constexpr std::size_t kLeastFanIn = 256;                   // below, the Gram matrix costs next to nothing
constexpr double kLeastDamping = 1e-4;                     // matrices of positions are regular by it alone
constexpr double kPositionsShare = 0.8;                    // beyond, products with the Gram matrix are cheaper
constexpr std::size_t kLeastElements = 4;                  // of a kernel, for pixels to pay
constexpr std::size_t kMostPixels = std::size_t{1} << 24;  // as floats can count

double mean_squared_output_error(const QuantizedWeights& weights, const RawInputs& form, const Solution& solution,
                                 const Kernels& kernels) {
  if (form.positions == 0) return 0;
  const std::size_t n = form.positions, k = weights.fan_in;
  const std::vector<float> spelled_out = form.pixels.count > 0 ? im2col(form.pixels) : std::vector<float>();
  const float* inputs = spelled_out.empty() ? form.inputs.data() : spelled_out.data();
  const bool own = form.targets.empty();  // the bias is as it was
  auto values = dequantized(weights, {0, weights.rows}, solution.integers.data());
  if (own) add_scaled(values.data(), -1.0F, weights.values.data(), values.size());
  std::vector<float> rest = form.targets;
  rest.resize(weights.rows * n);
  Gemm shape = gemm_of(weights.rows, n, k, true, 1);
  shape.alpha = -1;
  kernels.gemm(shape, values.data(), k, inputs, k, rest.data(), n);
  for (std::size_t i = 0; i < rest.size() && !own && !solution.bias.empty(); ++i) rest[i] -= solution.bias[i / n];
  return dot_double(rest.data(), rest.data(), rest.size()) / static_cast<double>(rest.size());
}

}  // namespace

bool inputs_pay(std::size_t groups, std::size_t fan_in, const FinetuneConfig& config) {
  const Solver* solver = find_solver(config.solver);
  return solver != nullptr && solver->has_input_form && config.damping >= kLeastDamping && groups == 1 &&
         fan_in >= kLeastFanIn;
}

std::size_t most_positions(const LayerGeometry& geometry, const FinetuneConfig& config) {
  const auto fan_in = static_cast<std::size_t>(geometry.fan_in());
  return inputs_pay(static_cast<std::size_t>(geometry.groups), fan_in, config)
             ? static_cast<std::size_t>(kPositionsShare * static_cast<double>(fan_in))
             : 0;
}

std::size_t gram_positions(const LayerGeometry& geometry) {
  constexpr std::size_t kTimesFanIn = 8, kLeast = 4096;
  return std::max(kTimesFanIn * static_cast<std::size_t>(geometry.fan_in()), kLeast);
}

FormAccumulator::FormAccumulator(const LayerGeometry& geometry, const FinetuneConfig& config, std::uint64_t samples,
                                 MakeSums make_sums)
    : geometry_(geometry),
      make_sums_(std::move(make_sums)),
      most_(most_positions(geometry, config)),
      most_of_sample_(gram_positions(geometry) / std::max<std::uint64_t>(samples, 1) + 1),
      seed_(config.seed) {
  if (most_ == 0) begin_gram();
}

FormAccumulator::FormAccumulator(const LayerGeometry& geometry, const Kernels& kernels, std::size_t threads,
                                 const FinetuneConfig& config, std::uint64_t samples)
    : FormAccumulator(geometry, config, samples, [geometry, &kernels, threads] {
        return std::make_unique<GramAccumulator>(geometry, kernels, threads);
      }) {}

std::vector<std::size_t> FormAccumulator::positions_of(std::uint64_t number, const Shape& input_shape,
                                                       bool has_target) const {
  const std::size_t all = Patches(geometry_, input_shape).positions();
  const bool cheap = !has_target && ShiftedSums::saves_work(geometry_) && all <= kTimesByShifts * most_of_sample_;
  auto positions = draw_positions(all, cheap ? all : most_of_sample_, seed_, number);
  std::sort(positions.begin(), positions.end());  // what lies together is read together
  return positions;
}

std::optional<DrawnPatches> FormAccumulator::drawn(std::uint64_t number, const Shape& input_shape,
                                                   std::span<const float> input, std::span<const float> target) const {
  if (!gram_) return std::nullopt;
  const auto positions = positions_of(number, input_shape, !target.empty());
  if (positions.size() == Patches(geometry_, input_shape).positions()) return std::nullopt;
  return DrawnPatches(geometry_, input_shape, input, target, positions);
}

void FormAccumulator::add_drawn(std::size_t positions, std::span<const float> inputs, std::span<const float> targets) {
  ++count_;
  positions_ += positions;
  gram_->add_drawn(positions, inputs, targets);
}

void FormAccumulator::add(const Shape& input_shape, std::span<const float> input, std::span<const float> target) {
  auto positions = positions_of(count_++, input_shape, !target.empty());
  positions_ += positions.size();
  if (!gram_ && positions_ > most_) begin_gram();
  if (gram_) {
    sum(input_shape, input, target, positions);
  } else {
    samples_.push_back(
        {input_shape, {input.begin(), input.end()}, {target.begin(), target.end()}, std::move(positions)});
  }
}

void FormAccumulator::sum(const Shape& input_shape, std::span<const float> input, std::span<const float> target,
                          std::span<const std::size_t> positions) {
  if (positions.size() == Patches(geometry_, input_shape).positions()) {
    gram_->add(input_shape, input, target);
  } else {
    gram_->add(input_shape, input, target, positions);
  }
}

// The sequence of positions is the same as if there had been no other form, and so are its sums.
void FormAccumulator::begin_gram() {
  gram_ = make_sums_();
  for (auto& sample : samples_) {
    sum(sample.shape, sample.input, sample.target, sample.positions);
    sample = {};
  }
  samples_.clear();
}

// Of all samples. Which pixel is behind a value tells an image of one channel that holds the pixels' numbers.
Pixels FormAccumulator::pixels() const {
  Pixels pixels;
  if (geometry_.kind == LayerKind::product) return pixels;
  pixels.channels = static_cast<std::size_t>(geometry_.inputs);
  for (const auto& sample : samples_) pixels.count += sample.input.size() / pixels.channels;
  pixels.elements = static_cast<std::size_t>(geometry_.fan_in()) / pixels.channels;
  const bool are_few = pixels.count * pixels.count <= 2 * positions_ * positions_ && pixels.count <= kMostPixels;
  if (pixels.elements < kLeastElements || !are_few) return {};
  pixels.values.resize(pixels.count * pixels.channels);
  LayerGeometry of_numbers = geometry_;
  of_numbers.inputs = of_numbers.outputs = 1;
  std::vector<float> behind(pixels.elements * positions_);
  std::size_t first = 0, at = 0;
  for (const auto& sample : samples_) {
    Shape shape = sample.shape;
    shape[1] = 1;
    const std::size_t batch = static_cast<std::size_t>(shape[0]), count = sample.input.size() / pixels.channels;
    const std::size_t of_image = count / batch;
    std::vector<float> numbers(count);
    std::iota(numbers.begin(), numbers.end(), static_cast<float>(first + 1));
    for (std::size_t i = 0; i < sample.input.size(); ++i) {
      const std::size_t plane = i / of_image, image = plane / pixels.channels, channel = plane % pixels.channels;
      pixels.values[(first + image * of_image + i % of_image) * pixels.channels + channel] = sample.input[i];
    }
    std::vector<Patches::Place> places;
    for (std::size_t c = 0; c < sample.positions.size(); ++c) places.push_back({behind.data() + at++, positions_});
    Patches(of_numbers, shape).gather(numbers.data(), {0, pixels.elements}, sample.positions, places);
    first += count;
  }
  for (const float number : behind) pixels.behind.push_back(static_cast<std::uint32_t>(number));
  return pixels;
}

GramFormOrRawInputs FormAccumulator::take() {
  if (gram_) return gram_->take();
  RawInputs form;
  form.positions = positions_;
  form.pixels = pixels();
  const auto fan_in = static_cast<std::size_t>(geometry_.fan_in());
  const auto outputs = static_cast<std::size_t>(geometry_.outputs);
  const bool spelled_out = form.pixels.count == 0;
  form.inputs.resize(spelled_out ? positions_ * fan_in : 0);
  const bool aimed = !samples_.empty() && !samples_[0].target.empty();
  form.targets.resize(aimed ? outputs * positions_ : 0);
  std::size_t at = 0;
  for (auto& sample : samples_) {
    const Patches patches(geometry_, sample.shape);
    if (sample.target.size() != (aimed ? patches.positions() * outputs : 0)) {
      throw internal_error("a sample does not fit the layer's geometry");
    }
    std::vector<Patches::Place> inputs, targets;
    for (std::size_t i = 0; i < sample.positions.size(); ++i, ++at) {
      if (spelled_out) inputs.push_back({form.inputs.data() + at * fan_in, 1});
      if (aimed) targets.push_back({form.targets.data() + at, positions_});
    }
    if (spelled_out) patches.gather(sample.input.data(), {0, fan_in}, sample.positions, inputs);
    if (aimed) patches.gather_outputs(sample.target.data(), sample.positions, targets);
    sample = {};
  }
  return form;
}

Solution solve(const QuantizedWeights& weights, const GramFormOrRawInputs& any, std::span<const float> bias,
               const FinetuneConfig& config, const Kernels& kernels, const SolveControl& control) {
  return std::visit([&](const auto& form) { return solve(weights, form, bias, config, kernels, control); }, any);
}

double mean_squared_output_error(const QuantizedWeights& weights, const GramFormOrRawInputs& any,
                                 const Solution& solution, const Kernels& kernels) {
  if (const auto* gram = std::get_if<GramForm>(&any)) return mean_squared_output_error(weights, *gram, solution);
  return mean_squared_output_error(weights, std::get<RawInputs>(any), solution, kernels);
}

namespace {

// Positions for each weight: what the float model's outputs say weighs as much as what they mislead by, and damping is
// twice the given one. What 4-bit weights have changed can be undone to a larger part than the rounding of values.
constexpr double kHalfOfFloat = 128;
constexpr double kHalfOfFloatAt4Bits = 64;
constexpr double kHalfOfDamping = 64;

void convolve(const QuantizedWeights& weights, const LayerGeometry& geometry, const Patches& patches,
              std::span<const float> input, const Kernels& kernels, std::size_t threads, float* out) {
  const auto groups = static_cast<std::size_t>(geometry.groups);
  const std::size_t k = weights.fan_in, group_rows = weights.rows / groups;
  const std::size_t of_sample = patches.positions() / patches.batch();
  Tile tile(patches.rows(), std::min(of_sample, tile_positions(patches.rows())), false);
  const auto ranges = row_ranges(weights.rows, groups, k);
  for (std::size_t at = 0; at < patches.positions();) {
    const std::size_t count = std::min(tile.capacity, of_sample - at % of_sample);
    for_row_pieces(patches.rows(), threads, [&](RowRange range) {
      patches.gather(input.data(), {range.first, range.last}, {at, at + count}, tile, 0);
    });
    float* sample = out + at / of_sample * weights.rows * of_sample + at % of_sample;
    parallel_for(ranges.size(), threads, [&](std::size_t i) {
      for (std::size_t first = ranges[i].first; first < ranges[i].last;) {
        const std::size_t group = first / group_rows;
        const std::size_t last = std::min(ranges[i].last, (group + 1) * group_rows);
        kernels.gemm(gemm_of(last - first, count, k, false), weights.values.data() + first * k, k, tile.row(group * k),
                     tile.leading(), sample + first * of_sample, of_sample);
        first = last;
      }
    });
    at += count;
  }
}

/// Sums of the targets w x + b in place of those of the form's own targets y, but for a share of them.
void retarget(GramForm& form, const QuantizedWeights& weights, std::span<const float> bias, const TargetMixture& aim,
              const Kernels& kernels, std::size_t threads) {
  const std::size_t k = weights.fan_in, group_rows = weights.rows / form.groups;
  const auto n = static_cast<double>(form.positions);
  const double share = aim.asymmetric_share, own = 1 - share;
  const Quadratic quadratic(weights, form, {}, false);
  const auto ranges = row_ranges(weights.rows, form.groups, k);
  parallel_for(ranges.size(), threads, [&](std::size_t i) {
    const RowRange rows = ranges[i];
    std::vector<float> product(rows.count() * k);  // W G
    quadratic.product(kernels, rows, weights.values.data() + rows.first * k, product.data());
    for (std::size_t m = rows.first; m < rows.last; ++m) {
      const double* inputs = form.input_sum.data() + m / group_rows * k;
      const float* w = weights.values.data() + m * k;
      const float* squares = product.data() + (m - rows.first) * k;
      float* cross = form.cross.data() + m * k;
      const double sum = dot_double(inputs, w, k);
      const double target = form.target_sum[m];
      const double b = aim.best_bias ? (target - sum) / n : bias.empty() ? 0.0 : static_cast<double>(bias[m]);
      const double both = dot_double(w, cross, k) + b * target;  // of own outputs and targets
      form.target_norm[m] = own * own * (dot_double(w, squares, k) + b * (2 * sum + n * b)) + 2 * own * share * both +
                            share * share * form.target_norm[m];
      form.target_sum[m] = own * (sum + n * b) + share * target;
      for (std::size_t j = 0; j < k; ++j) {
        cross[j] = static_cast<float>(own * (squares[j] + b * inputs[j]) + share * cross[j]);
      }
    }
  });
  form.symmetric = share == 0;
}

/// Only the mean of the targets is wanted, and that only for the best bias.
void retarget(RawInputs& form, const QuantizedWeights& weights, bool best_bias, const Kernels& kernels,
              std::size_t threads) {
  const std::size_t k = weights.fan_in, n = form.positions;
  if (!best_bias) {
    form.targets.clear();
    return;
  }
  if (form.pixels.count > 0) form.inputs = im2col(std::exchange(form.pixels, {}));
  for_row_pieces(weights.rows, threads, [&](RowRange range) {
    const auto [first, last] = range;
    std::vector<double> sums;
    for (std::size_t m = first; m < last; ++m) sums.push_back(sum_double(form.targets.data() + m * n, n));
    kernels.gemm(gemm_of(last - first, n, k, true), weights.values.data() + first * k, k, form.inputs.data(), k,
                 form.targets.data() + first * n, n);
    for (std::size_t m = first; m < last; ++m) {
      float* row = form.targets.data() + m * n;
      const auto b = static_cast<float>((sums[m - first] - sum_double(row, n)) / static_cast<double>(n));
      for (std::size_t c = 0; c < n; ++c) row[c] += b;
    }
  });
}

}  // namespace

float asymmetric_share(double positions_per_weight, std::int32_t levels) noexcept {
  constexpr double kNone = 24;
  if (positions_per_weight <= kNone) return 0;
  return static_cast<float>(positions_per_weight /
                            (positions_per_weight + (levels <= 16 ? kHalfOfFloatAt4Bits : kHalfOfFloat)));
}

double damping_for(double given, double positions_per_weight) noexcept {
  constexpr double kMost = 10;
  return given *
         (positions_per_weight <= kHalfOfDamping / (kMost - 1) ? kMost : 1 + kHalfOfDamping / positions_per_weight);
}

double positions_per_weight(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples) {
  const auto positions = static_cast<double>(Patches(geometry, input_shape).positions());
  return static_cast<double>(samples) * positions / static_cast<double>(geometry.fan_in());
}

std::vector<float> symmetric_targets(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                     std::span<const float> bias, const Shape& input_shape,
                                     std::span<const float> input, const Kernels& kernels, std::size_t threads) {
  const Patches patches(geometry, input_shape);
  const std::size_t rows = weights.rows, k = weights.fan_in;
  std::vector<float> out(patches.positions() * rows);
  if (geometry.kind == LayerKind::product) {
    for_row_pieces(patches.positions(), threads, [&](RowRange range) {
      const auto [first, last] = range;
      kernels.gemm(gemm_of(last - first, rows, k, true), input.data() + first * k, k, weights.values.data(), k,
                   out.data() + first * rows, rows);
    });
  } else {
    convolve(weights, geometry, patches, input, kernels, threads, out.data());
  }
  const std::size_t step = geometry.kind == LayerKind::product ? 1 : patches.positions() / patches.batch();
  for (std::size_t i = 0; i < out.size() && !bias.empty(); ++i) out[i] += bias[i / step % rows];
  return out;
}

void set_targets(GramFormOrRawInputs& any, const QuantizedWeights& weights, std::span<const float> bias,
                 const TargetMixture& aim, const Kernels& kernels, std::size_t threads) {
  if (auto* form = std::get_if<GramForm>(&any)) {
    if (form->positions == 0) return;
    // GPTQ compensates for what rounding changes, and where no weights are better than W that is all it looks at.
    form->symmetric = aim.integers_only && aim.asymmetric_share == 0 && !aim.best_bias;
    if (!form->symmetric) retarget(*form, weights, bias, aim, kernels, threads);
  } else if (auto& positions = std::get<RawInputs>(any); positions.positions > 0) {
    retarget(positions, weights, aim.best_bias, kernels, threads);
  }
}

}  // namespace detent::solve
