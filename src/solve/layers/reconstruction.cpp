#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/parallel.h"
#include "solve/algebra/quadratic.h"
#include "solve/algebra/scale_fit.h"
#include "solve/algebra/vector_sums.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/streamed.h"

namespace detent::solve {
namespace {

constexpr std::size_t kPositionsToJudge = 256;  // of a sample; more of them say the same

/// Computes the outputs of a solution and hands them out row by row, a tile of positions at a time. The rows of one
/// item are handed out by one thread at a time, in the order of positions.
class Outputs {
 public:
  using Use = std::function<void(std::size_t item, std::size_t row, const float* values, const Tile& targets,
                                 std::size_t positions)>;

  Outputs(const QuantizedWeights& weights, const LayerGeometry& geometry, const Solution& solution,
          const Kernels& kernels)
      : geometry_(geometry),
        fan_in_(weights.fan_in),
        group_rows_(weights.rows / static_cast<std::size_t>(geometry.groups)),
        bias_(solution.bias),
        kernels_(kernels),
        ranges_(row_ranges(weights.rows, static_cast<std::size_t>(geometry.groups), fan_in_)),
        values_(solution.integers.size()) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      values_[i] = weights.dequantize(i / fan_in_, i % fan_in_, solution.integers[i]);
    }
  }

  std::size_t items() const noexcept { return ranges_.size(); }

  /// Of up to `most` positions, spread over the sample; returns how many they are.
  std::size_t run(const SampleRef& sample, std::size_t most, std::size_t threads, const Use& use) {
    const Patches patches(geometry_, sample.input_shape);
    if (sample.target.size() != patches.positions() * patches.outputs()) {
      throw internal_error("a sample does not fit the layer's geometry");
    }
    const std::size_t total = std::min(patches.positions(), most);
    const std::size_t capacity = std::min(total, tile_positions(patches.rows() + patches.outputs()));
    if (tiles_.empty() || tiles_[0].capacity != capacity) make_tiles(patches, capacity);
    std::vector<std::size_t> drawn;
    if (total < patches.positions()) drawn = draw_positions(patches.positions(), total, 0, 0);
    std::sort(drawn.begin(), drawn.end());
    for (std::size_t at = 0; at < total; at += capacity) {
      const std::size_t count = std::min(capacity, total - at);
      if (drawn.empty()) {
        patches.gather(sample.input.data(), {0, patches.rows()}, {at, at + count}, tiles_[0], 0);
        patches.gather_outputs(sample.target.data(), {0, patches.outputs()}, {at, at + count}, tiles_[1], 0);
      } else {
        const auto positions = std::span<const std::size_t>(drawn).subspan(at, count);
        patches.gather(sample.input.data(), {0, patches.rows()}, positions, Patches::places(tiles_[0], 0, count));
        patches.gather_outputs(sample.target.data(), positions, Patches::places(tiles_[1], 0, count));
      }
      parallel_for(ranges_.size(), threads,
                   [&](std::size_t item) { multiply(item, tiles_[0], tiles_[1], count, use); });
    }
    return total;
  }

 private:
  void make_tiles(const Patches& patches, std::size_t capacity) {
    const bool by_position = geometry_.kind == LayerKind::product;
    tiles_ = {{patches.rows(), capacity, by_position}, {patches.outputs(), capacity, by_position}};
  }

  void multiply(std::size_t item, const Tile& inputs, const Tile& targets, std::size_t positions,
                const Use& use) const {
    const RowRange all = ranges_[item];
    std::vector<float> out;
    for (std::size_t first = all.first; first < all.last;) {
      const std::size_t group = first / group_rows_;
      const std::size_t last = std::min(all.last, (group + 1) * group_rows_);
      out.resize((last - first) * positions);
      Gemm shape;
      shape.transpose_b = inputs.column_major;
      shape.m = static_cast<std::int64_t>(last - first);
      shape.n = static_cast<std::int64_t>(positions);
      shape.k = static_cast<std::int64_t>(fan_in_);
      kernels_.gemm(shape, values_.data() + first * fan_in_, fan_in_, inputs.row(group * fan_in_), inputs.leading(),
                    out.data(), positions);
      for (std::size_t row = first; row < last; ++row) {
        float* y = out.data() + (row - first) * positions;
        for (std::size_t c = 0; c < positions && !bias_.empty(); ++c) y[c] += bias_[row];
        use(item, row, y, targets, positions);
      }
      first = last;
    }
  }

  const LayerGeometry& geometry_;
  std::size_t fan_in_;
  std::size_t group_rows_;
  std::vector<float> bias_;
  const Kernels& kernels_;
  std::vector<RowRange> ranges_;
  std::vector<float> values_;
  std::vector<Tile> tiles_;  // of inputs and targets
};

}  // namespace

double reconstruction_error(const QuantizedWeights& weights, const LayerGeometry& geometry, const Solution& solution,
                            LayerSamples& samples, const Kernels& kernels, const SolveControl& control) {
  return mean_of(sample_errors(weights, geometry, solution, samples, kernels, control));
}

std::vector<SampleError> sample_errors(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                       const Solution& solution, LayerSamples& samples, const Kernels& kernels,
                                       const SolveControl& control) {
  Outputs outputs(weights, geometry, solution, kernels);
  std::vector<SampleError> errors;
  for (std::size_t i = 0; i < samples.count(); ++i) {
    check_stop(control);
    const SampleRef sample = samples.get(i);
    std::vector<double> sums(outputs.items());
    const auto add = [&](std::size_t item, std::size_t row, const float* values, const Tile& targets,
                         std::size_t positions) {
      const float* from = targets.row(row);
      const std::size_t step = targets.column_major ? targets.rows : 1;
      double sum = 0;
      for (std::size_t c = 0; c < positions; ++c) {
        const float d = values[c] - from[c * step];
        sum += static_cast<double>(d) * d;
      }
      sums[item] += sum;
    };
    const std::uint64_t count = weights.rows * outputs.run(sample, kPositionsToJudge, control.threads, add);
    errors.push_back({std::accumulate(sums.begin(), sums.end(), 0.0), count});
  }
  return errors;
}

double mean_of(std::span<const SampleError> errors) {
  SampleError all;
  for (const auto& [squares, outputs] : errors) {
    all.squares += squares;
    all.outputs += outputs;
  }
  return all.outputs == 0 ? 0 : all.squares / static_cast<double>(all.outputs);
}

OutputSums sums_of_outputs_and_targets(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                       const Solution& solution, LayerSamples& samples, const Kernels& kernels,
                                       const SolveControl& control) {
  Outputs outputs(weights, geometry, {solution.integers, {}}, kernels);
  OutputSums sums{std::vector<RowSums>(weights.rows), 0};
  for (std::size_t i = 0; i < samples.count(); ++i) {
    check_stop(control);
    const SampleRef sample = samples.get(i);
    const auto add = [&](std::size_t, std::size_t row, const float* y, const Tile& targets, std::size_t positions) {
      const float* from = targets.row(row);
      const std::size_t step = targets.column_major ? targets.rows : 1;
      const float bias = solution.bias.empty() ? 0.0F : solution.bias[row];
      std::vector<float> t(positions);
      for (std::size_t c = 0; c < positions; ++c) t[c] = from[c * step] - bias;
      RowSums& of_row = sums.rows[row];
      of_row.y += sum_double(y, positions);
      of_row.t += sum_double(t.data(), positions);
      of_row.yt += dot_double(y, t.data(), positions);
      of_row.tt += dot_double(t.data(), t.data(), positions);
    };
    sums.positions += outputs.run(sample, std::numeric_limits<std::size_t>::max(), control.threads, add);
  }
  return sums;
}

std::vector<float> streamed_bias(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                 const Solution& solution, LayerSamples& samples, const Kernels& kernels,
                                 const SolveControl& control) {
  const OutputSums sums = sums_of_outputs_and_targets(weights, geometry, solution, samples, kernels, control);
  std::vector<float> bias = solution.bias;
  bias.resize(weights.rows);
  for (std::size_t m = 0; m < weights.rows && sums.positions > 0; ++m) {
    bias[m] = static_cast<float>(bias[m] + (sums.rows[m].t - sums.rows[m].y) / static_cast<double>(sums.positions));
  }
  return bias;
}

KeptSolution keep_if_better(const QuantizedWeights& weights, std::span<const float> bias,
                            const QuantizedWeights& fitted, Solution candidate,
                            const std::function<double(const QuantizedWeights&, const Solution&)>& error_of) {
  KeptSolution kept;
  kept.solution = nearest(weights, bias);
  kept.nearest_error = kept.error = error_of(weights, kept.solution);
  const double error = error_of(fitted, candidate);
  if (error < kept.nearest_error) {
    kept.solution = std::move(candidate);
    kept.error = error;
    kept.tuned = true;
  }
  return kept;
}

}  // namespace detent::solve
