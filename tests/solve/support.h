// Layers to solve, and the plainest way to compute what they give.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "solve/algebra/gram.h"
#include "solve/algebra/kernels.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/problem.h"

namespace detent::solve {

inline const Kernels& kernels() { return cpu_kernels(CPU_PLUGIN); }

inline std::size_t elements(const Shape& shape) {
  return static_cast<std::size_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

inline std::vector<float> normal(std::size_t count, unsigned seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> value(0, deviation);
  std::vector<float> values(count);
  for (float& v : values) v = value(random);
  return values;
}

inline LayerGeometry product(std::int64_t inputs, std::int64_t outputs) {
  LayerGeometry g;
  g.inputs = inputs;
  g.outputs = outputs;
  return g;
}

inline LayerGeometry convolution(std::int64_t inputs, std::int64_t outputs, std::int64_t groups, Shape kernel) {
  LayerGeometry g;
  g.kind = LayerKind::convolution;
  g.inputs = inputs;
  g.outputs = outputs;
  g.groups = groups;
  g.strides = g.dilations = Shape(kernel.size(), 1);
  g.pads_begin = g.pads_end = Shape(kernel.size(), 0);
  g.kernel = std::move(kernel);
  return g;
}

/// A layer and an input shape for it.
struct Case {
  const char* name;
  LayerGeometry geometry;
  Shape input;
};

/// Every kind of layer: one to three axes, groups, depthwise, strides, uneven pads, dilation, output padding.
inline std::vector<Case> all_kinds() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, LayerGeometry g, Shape input, auto change) {
    change(g);
    cases.push_back({name, std::move(g), std::move(input)});
  };
  const auto as_is = [](LayerGeometry&) {};
  const auto transposed = [](LayerGeometry& g) {
    g.kind = LayerKind::transposed;
    g.output_padding = Shape(g.kernel.size(), 0);
  };
  add("product", product(7, 5), {2, 3, 7}, as_is);
  add("pointwise", convolution(6, 4, 1, {1, 1}), {2, 6, 5, 3}, as_is);
  add("one axis", convolution(3, 4, 1, {5}), {2, 3, 19}, [](LayerGeometry& g) {
    g.strides = {2};
    g.dilations = {2};
    g.pads_begin = {3};
    g.pads_end = {1};
  });
  add("two axes", convolution(4, 6, 2, {3, 2}), {3, 4, 9, 8}, [](LayerGeometry& g) {
    g.strides = {1, 2};
    g.dilations = {2, 1};
    g.pads_begin = {0, 2};
    g.pads_end = {3, 1};
  });
  add("three axes", convolution(2, 3, 1, {2, 3, 2}), {1, 2, 4, 5, 6}, [](LayerGeometry& g) {
    g.pads_begin = {1, 0, 1};
    g.pads_end = {0, 1, 1};
    g.strides = {1, 1, 2};
  });
  add("depthwise", convolution(5, 5, 5, {3, 3}), {2, 5, 7, 6}, [](LayerGeometry& g) {
    g.pads_begin = g.pads_end = {1, 1};
    g.strides = {2, 1};
  });
  add("depthwise with multiplier", convolution(3, 6, 3, {3, 3}), {2, 3, 6, 6}, as_is);
  add("transposed, one axis", convolution(3, 4, 1, {4}), {2, 3, 6}, [&](LayerGeometry& g) {
    transposed(g);
    g.strides = {3};
    g.pads_begin = {1};
    g.output_padding = {2};
  });
  add("transposed, two axes", convolution(4, 6, 2, {3, 3}), {2, 4, 5, 4}, [&](LayerGeometry& g) {
    transposed(g);
    g.strides = {2, 1};
    g.dilations = {1, 2};
    g.pads_begin = {1, 0};
    g.pads_end = {0, 2};
    g.output_padding = {1, 0};
  });
  return cases;
}

/// The layer's outputs for weights [outputs, fan_in], by the definition of each operator, in double.
inline std::vector<double> naive_forward(const LayerGeometry& g, const Shape& shape, const std::vector<float>& input,
                                         const std::vector<float>& weights) {
  const Shape out = g.output_shape(shape);
  std::vector<double> result(elements(out), 0.0);
  const auto fan_in = g.fan_in();
  if (g.kind == LayerKind::product) {
    for (std::size_t i = 0; i < result.size(); ++i) {
      const std::size_t n = i / static_cast<std::size_t>(g.outputs);
      const std::size_t m = i % static_cast<std::size_t>(g.outputs);
      for (std::int64_t k = 0; k < fan_in; ++k) {
        result[i] += static_cast<double>(input[n * fan_in + k]) * weights[m * fan_in + k];
      }
    }
    return result;
  }
  // Always three axes; every pair of input and kernel element that meets at an output.
  const auto padded = [&](Shape s, std::int64_t fill) {
    s.insert(s.begin(), 3 - s.size(), fill);
    return s;
  };
  const Shape spatial_in = padded({shape.begin() + 2, shape.end()}, 1);
  const Shape spatial_out = padded({out.begin() + 2, out.end()}, 1);
  const Shape k = padded(g.kernel, 1), s = padded(g.strides, 1), d = padded(g.dilations, 1),
              p = padded(g.pads_begin, 0);
  const bool forward = g.kind == LayerKind::convolution;
  const std::int64_t inner = g.inputs / g.groups, outer = g.outputs / g.groups;
  const Shape& from = forward ? spatial_out : spatial_in;   // steps by the stride
  const Shape& other = forward ? spatial_in : spatial_out;  // reached from there
  for (std::int64_t n = 0; n < shape[0]; ++n)
    for (std::int64_t m = 0; m < g.outputs; ++m)
      for (std::int64_t c = 0; c < inner; ++c)
        for (std::int64_t e = 0; e < k[0] * k[1] * k[2]; ++e)
          for (std::int64_t f = 0; f < from[0] * from[1] * from[2]; ++f) {
            const Shape at{f / from[2] / from[1], f / from[2] % from[1], f % from[2]};
            const Shape element{e / k[2] / k[1], e / k[2] % k[1], e % k[2]};
            std::int64_t reached = 0;
            bool inside = true;
            for (int a = 0; a < 3; ++a) {
              const std::int64_t position = at[a] * s[a] - p[a] + element[a] * d[a];
              inside = inside && position >= 0 && position < other[a];
              reached = reached * other[a] + position;
            }
            if (!inside) continue;
            const std::int64_t from_size = from[0] * from[1] * from[2], other_size = other[0] * other[1] * other[2];
            const std::int64_t channel = m / outer * inner + c;
            const std::int64_t x =
                (n * g.inputs + channel) * (forward ? other_size : from_size) + (forward ? reached : f);
            const std::int64_t y = (n * g.outputs + m) * (forward ? from_size : other_size) + (forward ? f : reached);
            result[y] += static_cast<double>(input[x]) * weights[m * fan_in + c * k[0] * k[1] * k[2] + e];
          }
  return result;
}

/// One scale for each row, so that the largest weight of the row fits the integers.
inline QuantizedWeights quantizable(const LayerGeometry& g, std::vector<float> values, int bits) {
  QuantizedWeights w;
  w.rows = static_cast<std::size_t>(g.outputs);
  w.fan_in = static_cast<std::size_t>(g.fan_in());
  w.highest = (1 << (bits - 1)) - 1;
  w.lowest = -w.highest - 1;
  w.values = std::move(values);
  w.zero.assign(w.rows, 0);
  for (std::size_t m = 0; m < w.rows; ++m) {
    float largest = 0;
    for (std::size_t k = 0; k < w.fan_in; ++k) largest = std::max(largest, std::abs(w.values[m * w.fan_in + k]));
    w.scale.push_back(largest / static_cast<float>(w.highest));
  }
  return w;
}

/// The same weights with a scale and a zero point for each block of `size` neighbours, from smallest to largest.
inline QuantizedWeights in_blocks(QuantizedWeights w, std::size_t size) {
  w.granularity = quantization::Granularity::blocks(1, static_cast<std::int64_t>(size));
  w.scale.clear();
  w.zero.clear();
  for (std::size_t m = 0; m < w.rows; ++m) {
    for (std::size_t first = 0; first < w.fan_in; first += size) {
      const auto begin = w.values.begin() + static_cast<std::ptrdiff_t>(m * w.fan_in + first);
      const auto [low, high] =
          std::minmax_element(begin, begin + static_cast<std::ptrdiff_t>(std::min(size, w.fan_in - first)));
      const float from = std::min(*low, 0.0F), to = std::max(*high, 0.0F);
      w.scale.push_back((to - from) / static_cast<float>(w.highest - w.lowest));
      w.zero.push_back(static_cast<std::int32_t>(std::nearbyint(static_cast<float>(w.lowest) - from / w.scale.back())));
    }
  }
  return w;
}

inline std::vector<float> dequantized(const QuantizedWeights& w, const std::vector<std::int32_t>& integers) {
  std::vector<float> values(integers.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = w.dequantize(i / w.fan_in, i % w.fan_in, integers[i]);
  return values;
}

/// A layer with samples: inputs of both branches and the float branch's outputs.
struct Layer {
  LayerGeometry geometry;
  QuantizedWeights weights;
  std::vector<float> bias;
  Shape shape;
  std::vector<std::vector<float>> inputs, float_inputs, targets;

  GramForm gram(std::size_t threads = 1) const {
    GramAccumulator sums(geometry, kernels(), threads);
    for (std::size_t i = 0; i < inputs.size(); ++i) sums.add(shape, inputs[i], targets[i]);
    return sums.take();
  }
};

/// Samples whose channels are correlated, as those of networks are; the quantized branch's are off by a little noise.
inline Layer make_layer(const LayerGeometry& g, const Shape& shape, std::size_t samples, int bits, unsigned seed,
                        unsigned data_seed = 100) {
  Layer layer;
  layer.geometry = g;
  layer.shape = shape;
  layer.weights = quantizable(g, normal(static_cast<std::size_t>(g.outputs * g.fan_in()), seed), bits);
  layer.bias = normal(static_cast<std::size_t>(g.outputs), seed + 1);
  const bool product = g.kind == LayerKind::product;
  const auto channels = static_cast<std::size_t>(g.inputs);
  const std::size_t hidden = std::max<std::size_t>(channels / 4, 1);
  const std::vector<float> mix = normal(channels * hidden, seed + 2, 1 / std::sqrt(static_cast<float>(hidden)));
  const std::size_t batch = product ? elements(shape) / channels : static_cast<std::size_t>(shape[0]);
  const std::size_t positions = elements(shape) / channels / batch;
  const Shape out = g.output_shape(shape);
  const std::size_t out_positions = product ? 1 : elements(out) / batch / static_cast<std::size_t>(g.outputs);
  for (std::size_t s = 0; s < samples; ++s) {
    const auto at = static_cast<unsigned>(data_seed + 10 * s);
    const std::vector<float> latent = normal(batch * positions * hidden, at);
    std::vector<float> input = normal(elements(shape), at + 1, 0.3F);
    for (std::size_t n = 0; n < batch; ++n)
      for (std::size_t c = 0; c < channels; ++c)
        for (std::size_t p = 0; p < positions; ++p)
          for (std::size_t h = 0; h < hidden; ++h)
            input[(n * channels + c) * positions + p] += mix[c * hidden + h] * latent[(n * positions + p) * hidden + h];
    for (float& v : input) v = std::max(v + 0.2F, 0.0F);
    const std::vector<double> exact = naive_forward(g, shape, input, layer.weights.values);
    std::vector<float> target(exact.size());
    for (std::size_t i = 0; i < target.size(); ++i) {
      const std::size_t m = i / out_positions % static_cast<std::size_t>(g.outputs);
      target[i] = static_cast<float>(exact[i]) + layer.bias[m];
    }
    const std::vector<float> noise = normal(input.size(), at + 2, 0.02F);
    layer.float_inputs.push_back(input);
    for (std::size_t i = 0; i < input.size(); ++i) input[i] += noise[i];
    layer.inputs.push_back(std::move(input));
    layer.targets.push_back(std::move(target));
  }
  return layer;
}

/// Sum over all positions and outputs of |ŷ − y|², in double.
inline double naive_error(const Layer& layer, const Solution& solution) {
  const auto values = dequantized(layer.weights, solution.integers);
  const Shape out = layer.geometry.output_shape(layer.shape);
  const bool product = layer.geometry.kind == LayerKind::product;
  const std::size_t outputs = static_cast<std::size_t>(layer.geometry.outputs);
  const std::size_t positions = product ? 1 : elements(out) / static_cast<std::size_t>(out[0]) / outputs;
  double sum = 0;
  for (std::size_t s = 0; s < layer.inputs.size(); ++s) {
    const auto y = naive_forward(layer.geometry, layer.shape, layer.inputs[s], values);
    for (std::size_t i = 0; i < y.size(); ++i) {
      const double b = solution.bias.empty() ? 0 : solution.bias[i / positions % outputs];
      const double d = y[i] + b - layer.targets[s][i];
      sum += d * d;
    }
  }
  return sum;
}

inline double naive_mean(const Layer& layer, const Solution& solution) {
  const std::size_t count = layer.targets.empty() ? 1 : layer.targets.size() * layer.targets[0].size();
  return naive_error(layer, solution) / static_cast<double>(count);
}

/// A layer's samples as they are.
class InMemory final : public LayerSamples {
 public:
  explicit InMemory(const Layer& layer) : layer_(layer) {}
  std::size_t count() const override { return layer_.inputs.size(); }
  SampleRef get(std::size_t i) override {
    return {layer_.shape, layer_.inputs[i], layer_.float_inputs[i], layer_.targets[i], nullptr};
  }

 private:
  const Layer& layer_;
};

}  // namespace detent::solve
