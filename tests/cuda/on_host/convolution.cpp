// Convolutions on the host by their definition, in either layout.
#include "cuda/layer_pass.h"

namespace detent::cuda {

struct ConvolutionContext {};

using solve::LayerGeometry;
using solve::LayerKind;
using Shape = std::vector<std::int64_t>;

struct Convolution::Plan {
  LayerGeometry g;
  Shape in, out;
  std::int64_t channels;
  bool last;

  Shape spatial(const Shape& shape, std::size_t skip, std::int64_t fill) const {
    Shape three(shape.begin() + static_cast<std::ptrdiff_t>(skip), shape.end());
    three.insert(three.begin(), 3 - three.size(), fill);
    return three;
  }

  /// Calls fn(index of x, index of the filter, index of y) for all that meet. The library pads ends as beginnings.
  template <class Fn>
  void each(const Fn& fn) const {
    const bool transposed = g.kind == LayerKind::transposed;
    const Shape is = spatial(in, 2, 1), os = spatial(out, 2, 1), k = spatial(g.kernel, 0, 1);
    const Shape s = spatial(g.strides, 0, 1), d = spatial(g.dilations, 0, 1), p = spatial(g.pads_begin, 0, 0);
    const Shape& steps = transposed ? is : os;
    const Shape& spread = transposed ? os : is;
    const std::int64_t steps_size = steps[0] * steps[1] * steps[2], spread_size = spread[0] * spread[1] * spread[2];
    const std::int64_t kernel = k[0] * k[1] * k[2], inner = g.inputs / g.groups, outer = g.outputs / g.groups;
    for (std::int64_t n = 0; n < in[0]; ++n)
      for (std::int64_t m = 0; m < g.outputs; ++m)
        for (std::int64_t c = 0; c < inner; ++c)
          for (std::int64_t e = 0; e < kernel; ++e)
            for (std::int64_t f = 0; f < steps_size; ++f) {
              const Shape at{f / steps[2] / steps[1], f / steps[2] % steps[1], f % steps[2]};
              const Shape element{e / k[2] / k[1], e / k[2] % k[1], e % k[2]};
              std::int64_t reached = 0;
              bool inside = true;
              for (std::size_t a = 0; a < 3; ++a) {
                const std::int64_t position = at[a] * s[a] - p[a] + element[a] * d[a];
                inside = inside && position >= 0 && position < spread[a];
                reached = reached * spread[a] + position;
              }
              if (!inside) continue;
              const std::int64_t channel = m / outer * inner + c;
              const std::int64_t i = transposed ? f : reached, o = transposed ? reached : f;
              const std::int64_t in_size = transposed ? steps_size : spread_size;
              const std::int64_t out_size = transposed ? spread_size : steps_size;
              const std::int64_t x =
                  last ? (n * in_size + i) * g.inputs + channel : (n * channels + channel) * in_size + i;
              const std::int64_t y = last ? (n * out_size + o) * g.outputs + m : (n * g.outputs + m) * out_size + o;
              const std::int64_t first = transposed ? channel : m, second = transposed ? m % outer : c;
              const std::int64_t width = transposed ? outer : inner;
              fn(x, last ? (first * kernel + e) * width + second : (first * width + second) * kernel + e, y);
            }
  }
};

Convolution::Convolution(Device&, const LayerGeometry& geometry, const Shape& input_shape, std::int64_t channels,
                         DeviceLayout layout, DevicePrecision)
    : plan_(std::make_unique<Plan>(
          Plan{geometry, input_shape, geometry.output_shape(input_shape), channels, layout == DeviceLayout::nhwc})) {}
Convolution::Convolution(Convolution&&) noexcept = default;
Convolution& Convolution::operator=(Convolution&&) noexcept = default;
Convolution::~Convolution() = default;

void Convolution::forward(const float* input, const float* filter, float* output) const {
  std::int64_t count = 1;
  for (const std::int64_t d : plan_->out) count *= d;
  std::vector<double> sums(static_cast<std::size_t>(count));
  plan_->each(
      [&](auto x, auto w, auto y) { sums[static_cast<std::size_t>(y)] += static_cast<double>(input[x]) * filter[w]; });
  for (std::size_t i = 0; i < sums.size(); ++i) output[i] = static_cast<float>(sums[i]);
}

void Convolution::backward_filter(const float* input, const float* slope, float* gradient, float beta) const {
  std::vector<double> sums(static_cast<std::size_t>(plan_->g.outputs * plan_->g.fan_in()));
  plan_->each(
      [&](auto x, auto w, auto y) { sums[static_cast<std::size_t>(w)] += static_cast<double>(input[x]) * slope[y]; });
  for (std::size_t i = 0; i < sums.size(); ++i) {
    gradient[i] = static_cast<float>(sums[i]) + (beta == 0 ? 0.0F : beta * gradient[i]);
  }
}

}  // namespace detent::cuda
