#include "solve/layers/problem.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "quantization/weights.h"
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

namespace {

std::int64_t axis_size(const LayerGeometry& g, std::size_t a, std::int64_t in) {
  const std::int64_t reach = g.dilations[a] * (g.kernel[a] - 1) + 1;
  const std::int64_t pads = g.pads_begin[a] + g.pads_end[a];
  if (g.kind == LayerKind::transposed) return (in - 1) * g.strides[a] - pads + reach + g.output_padding[a];
  return in + pads < reach ? 0 : (in + pads - reach) / g.strides[a] + 1;
}

}  // namespace

std::int64_t LayerGeometry::fan_in() const {
  return std::accumulate(kernel.begin(), kernel.end(), inputs / groups, std::multiplies<>());
}

std::vector<std::int64_t> LayerGeometry::output_shape(const std::vector<std::int64_t>& input) const {
  const bool is_product = kind == LayerKind::product;
  const bool fits =
      is_product ? !input.empty() && input.back() == inputs : input.size() == kernel.size() + 2 && input[1] == inputs;
  if (!fits) throw internal_error(fmt::format("a layer of {} inputs cannot take [{}]", inputs, fmt::join(input, ", ")));
  std::vector<std::int64_t> shape = input;
  (is_product ? shape.back() : shape[1]) = outputs;
  for (std::size_t a = 0; a < kernel.size(); ++a) {
    shape[a + 2] = axis_size(*this, a, input[a + 2]);
    if (shape[a + 2] < 0) throw internal_error(fmt::format("no output is left of [{}]", fmt::join(input, ", ")));
  }
  return shape;
}

namespace {

constexpr std::size_t kTileBytes = std::size_t{8} << 20;

/// Calls fn(index in the model's tensor, index in the matrix) for each weight.
template <class Fn>
void for_each_weight(const LayerGeometry& g, WeightLayout layout, const Fn& fn) {
  const std::size_t kernel = product_of(g.kernel);
  const auto outputs = static_cast<std::size_t>(g.outputs);
  const auto groups = static_cast<std::size_t>(g.groups);
  const std::size_t inner = static_cast<std::size_t>(g.inputs) / groups;
  const std::size_t outer = outputs / groups;
  for (std::size_t m = 0, at = 0; m < outputs; ++m) {
    for (std::size_t c = 0; c < inner; ++c) {
      const std::size_t start =
          layout == WeightLayout::outputs_first ? at : ((m / outer * inner + c) * outer + m % outer) * kernel;
      for (std::size_t k = 0; k < kernel; ++k) fn(start + k, at++);
    }
  }
}

}  // namespace

std::size_t product_of(std::span<const std::int64_t> extents) {
  std::size_t product = 1;
  for (const std::int64_t e : extents) product *= static_cast<std::size_t>(e);
  return product;
}

std::vector<float> to_matrix(const LayerGeometry& geometry, WeightLayout layout, std::span<const float> weights) {
  std::vector<float> matrix(static_cast<std::size_t>(geometry.outputs * geometry.fan_in()));
  if (matrix.size() != weights.size()) throw internal_error("weights do not fit the layer's geometry");
  for_each_weight(geometry, layout, [&](std::size_t model, std::size_t at) { matrix[at] = weights[model]; });
  return matrix;
}

std::vector<std::int32_t> from_matrix(const LayerGeometry& geometry, WeightLayout layout,
                                      std::span<const std::int32_t> matrix) {
  std::vector<std::int32_t> weights(static_cast<std::size_t>(geometry.outputs * geometry.fan_in()));
  if (matrix.size() != weights.size()) throw internal_error("integers do not fit the layer's geometry");
  for_each_weight(geometry, layout, [&](std::size_t model, std::size_t at) { weights[model] = matrix[at]; });
  return weights;
}

Patches::Patches(const LayerGeometry& g, const Shape& input)
    : product_(g.kind == LayerKind::product),
      transposed_(g.kind == LayerKind::transposed),
      channels_(static_cast<std::size_t>(g.inputs)),
      outputs_(static_cast<std::size_t>(g.outputs)),
      kernel_size_(product_of(g.kernel)),
      rows_(static_cast<std::size_t>(g.groups * g.fan_in())) {
  const Shape output = g.output_shape(input);
  if (product_) {
    batch_ = product_of({input.data(), input.size() - 1});
    return;
  }
  if (g.kernel.empty() || g.kernel.size() > 3) throw internal_error("convolutions have one to three spatial axes");
  batch_ = static_cast<std::size_t>(input[0]);
  const std::size_t skip = 3 - g.kernel.size();
  bool pointwise = true;
  for (std::size_t a = 0; a < g.kernel.size(); ++a) {
    axes_[skip + a] = {input[a + 2], output[a + 2], g.kernel[a], g.strides[a], g.dilations[a], g.pads_begin[a]};
    pointwise =
        pointwise && g.kernel[a] == 1 && g.strides[a] == 1 && input[a + 2] == output[a + 2] && g.pads_begin[a] == 0;
  }
  for (const Axis& axis : axes_) {
    sample_positions_ *= static_cast<std::size_t>(axis.out);
    input_values_ *= static_cast<std::size_t>(axis.in);
  }
  if (pointwise) {  // one long line instead of many short ones
    const auto all = static_cast<std::int64_t>(sample_positions_);
    axes_[0] = axes_[1] = Axis{};
    axes_[2] = Axis{all, all};
  }
}

/// Where on an axis of the input the value comes from that kernel element k brings to an output; -1: nowhere.
std::int64_t Patches::source(const Axis& axis, std::int64_t out, std::int64_t k) const noexcept {
  if (!transposed_) {
    const std::int64_t in = out * axis.stride - axis.pad + k * axis.dilation;
    return in < axis.in ? in : -1;
  }
  const std::int64_t spread = out + axis.pad - k * axis.dilation;
  if (spread < 0 || spread % axis.stride != 0 || spread / axis.stride >= axis.in) return -1;
  return spread / axis.stride;
}

void Patches::fill_line(const float* line, const Axis& axis, std::int64_t k, std::int64_t first, std::size_t count,
                        float* to) const noexcept {
  const auto n = static_cast<std::int64_t>(count);
  if (axis.stride != 1) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t in = source(axis, first + i, k);
      to[i] = in < 0 ? 0.0F : line[in];
    }
    return;
  }
  // Neighbours stay neighbours: zeros, a piece of the line, zeros.
  const std::int64_t start = transposed_ ? first + axis.pad - k * axis.dilation : first - axis.pad + k * axis.dilation;
  const std::int64_t from = std::clamp<std::int64_t>(-start, 0, n);
  const std::int64_t until = std::clamp<std::int64_t>(axis.in - start, from, n);
  std::fill(to, to + from, 0.0F);
  std::copy(line + start + from, line + start + until, to + from);
  std::fill(to + until, to + n, 0.0F);
}

void Patches::gather_row(const float* input, std::size_t row, Range positions, float* to) const noexcept {
  const std::size_t channel = row / kernel_size_;
  const auto element = static_cast<std::int64_t>(row % kernel_size_);
  const std::int64_t k2 = element % axes_[2].kernel;
  const std::int64_t k1 = element / axes_[2].kernel % axes_[1].kernel;
  const std::int64_t k0 = element / axes_[2].kernel / axes_[1].kernel;
  for (std::size_t at = positions.first; at < positions.last;) {
    const std::size_t sample = at / sample_positions_;
    const auto at_position = static_cast<std::int64_t>(at % sample_positions_);
    const std::int64_t o2 = at_position % axes_[2].out;
    const std::size_t count = std::min(static_cast<std::size_t>(axes_[2].out - o2), positions.last - at);
    const std::int64_t i1 = source(axes_[1], at_position / axes_[2].out % axes_[1].out, k1);
    const std::int64_t i0 = source(axes_[0], at_position / axes_[2].out / axes_[1].out, k0);
    if (i0 < 0 || i1 < 0) {
      std::fill(to, to + count, 0.0F);
    } else {
      const float* plane = input + (sample * channels_ + channel) * input_values_;
      fill_line(plane + (i0 * axes_[1].in + i1) * axes_[2].in, axes_[2], k2, o2, count, to);
    }
    to += count;
    at += count;
  }
}

std::vector<Patches::Place> Patches::places(Tile& tile, std::size_t first, std::size_t count) {
  std::vector<Place> places;
  for (std::size_t c = first; c < first + count; ++c) {
    places.push_back({tile.at(0, c), tile.column_major ? 1 : tile.capacity});
  }
  return places;
}

void Patches::gather(const float* input, Range rows, Range positions, Tile& tile, std::size_t at) const {
  if (product_) {
    for (std::size_t c = positions.first; c < positions.last; ++c) {
      const float* from = input + c * rows_;
      std::copy(from + rows.first, from + rows.last, tile.at(rows.first, at + c - positions.first));
    }
    return;
  }
  for (std::size_t row = rows.first; row < rows.last; ++row) gather_row(input, row, positions, tile.at(row, at));
}

void Patches::gather_outputs(const float* output, Range rows, Range positions, Tile& tile, std::size_t at) const {
  if (product_) {
    for (std::size_t c = positions.first; c < positions.last; ++c) {
      const float* from = output + c * outputs_;
      std::copy(from + rows.first, from + rows.last, tile.at(rows.first, at + c - positions.first));
    }
    return;
  }
  for (std::size_t row = rows.first; row < rows.last; ++row) {
    float* to = tile.at(row, at);
    for (std::size_t c = positions.first; c < positions.last;) {
      const std::size_t count = std::min(sample_positions_ - c % sample_positions_, positions.last - c);
      const float* from = output + (c / sample_positions_ * outputs_ + row) * sample_positions_ + c % sample_positions_;
      to = std::copy(from, from + count, to);
      c += count;
    }
  }
}

/// Where in an input, from its first channel on, the value comes from that a kernel element brings to a position.
std::int64_t Patches::source(std::size_t position, std::size_t element) const noexcept {
  const auto at_position = static_cast<std::int64_t>(position % sample_positions_);
  const auto e = static_cast<std::int64_t>(element);
  const Axis &a0 = axes_[0], &a1 = axes_[1], &a2 = axes_[2];
  const std::int64_t i0 = source(a0, at_position / a2.out / a1.out, e / a2.kernel / a1.kernel);
  const std::int64_t i1 = source(a1, at_position / a2.out % a1.out, e / a2.kernel % a1.kernel);
  const std::int64_t i2 = source(a2, at_position % a2.out, e % a2.kernel);
  if (i0 < 0 || i1 < 0 || i2 < 0) return -1;
  const auto sample = static_cast<std::int64_t>(position / sample_positions_ * channels_ * input_values_);
  return sample + (i0 * a1.in + i1) * a2.in + i2;
}

void Patches::gather(const float* input, Range rows, std::span<const std::size_t> positions,
                     std::span<const Place> places) const {
  if (product_) {
    for (std::size_t i = 0; i < positions.size(); ++i) {
      const float* from = input + positions[i] * rows_;
      for (std::size_t r = rows.first; r < rows.last; ++r) places[i].to[r * places[i].step] = from[r];
    }
    return;
  }
  std::vector<std::int64_t> sources(kernel_size_ * positions.size());
  for (std::size_t e = 0, at = 0; e < kernel_size_; ++e) {
    for (const std::size_t position : positions) sources[at++] = source(position, e);
  }
  for (std::size_t row = rows.first; row < rows.last; ++row) {
    const float* plane = input + row / kernel_size_ * input_values_;
    const std::int64_t* from = sources.data() + row % kernel_size_ * positions.size();
    for (std::size_t i = 0; i < positions.size(); ++i) {
      places[i].to[row * places[i].step] = from[i] < 0 ? 0.0F : plane[from[i]];
    }
  }
}

void Patches::gather_outputs(const float* output, std::span<const std::size_t> positions,
                             std::span<const Place> places) const {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::size_t position = positions[i];
    const float* from =
        product_ ? output + position * outputs_
                 : output + position / sample_positions_ * outputs_ * sample_positions_ + position % sample_positions_;
    const std::size_t step = product_ ? 1 : sample_positions_;
    for (std::size_t m = 0; m < outputs_; ++m) places[i].to[m * places[i].step] = from[m * step];
  }
}

std::size_t tile_positions(std::size_t rows) noexcept {
  const std::size_t positions = kTileBytes / sizeof(float) / std::max<std::size_t>(rows, 1);
  return std::clamp<std::size_t>(positions / 16 * 16, 128, 4096);
}

}  // namespace detent::solve
