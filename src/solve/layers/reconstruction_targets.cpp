#include "solve/layers/reconstruction_targets.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "base/parallel.h"
#include "solve/algebra/quadratic.h"
#include "solve/algebra/vector_sums.h"
#include "solve/layers/patches.h"

namespace detent::solve {
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
