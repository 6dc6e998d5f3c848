// Speed of fine-tuning's parts on one layer, a 3x3 convolution of 256 channels at 14x14.
#include <benchmark/benchmark.h>
#include <array>

#include <cstddef>
#include <vector>

#include "random_values.h"
#include "solve/algebra/gram.h"
#include "solve/layers/rounding_variables.h"
#include "solve/layers/solver.h"

namespace {

using detent::bench::normal;
using namespace detent::solve;

constexpr std::size_t kChannels = 256;
constexpr std::size_t kFanIn = kChannels * 9;

LayerGeometry layer(std::int64_t groups) {
  LayerGeometry g;
  g.kind = LayerKind::convolution;
  g.inputs = g.outputs = kChannels;
  g.groups = groups;
  g.kernel = {3, 3};
  g.strides = g.dilations = g.pads_begin = g.pads_end = {1, 1};
  return g;
}

QuantizedWeights weights_of(std::size_t rows, std::size_t fan_in) {
  QuantizedWeights w;
  w.rows = rows;
  w.fan_in = fan_in;
  w.values = normal(rows * fan_in, 1);
  w.scale.assign(rows, 0.5F);
  w.zero.assign(rows, 0);
  w.lowest = -8;
  w.highest = 7;
  return w;
}

void gram(benchmark::State& state) {
  const LayerGeometry g = layer(state.range(1));
  const auto input = normal(kChannels * 14 * 14, 1);
  const auto output = normal(kChannels * 14 * 14, 2);
  GramAccumulator sums(g, cpu_kernels(), static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) sums.add({1, kChannels, 14, 14}, input, output);
  const auto k = static_cast<double>(g.fan_in());
  const double flops = 2.0 * 196 * (static_cast<double>(g.groups) * k * (k + 1) / 2 + kChannels * k);
  state.counters["GFLOP/s"] = benchmark::Counter(flops * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(gram)->ArgsProduct({{1, 2}, {1, 32, 256}})->UseRealTime();

void adaround_step(benchmark::State& state) {  // rows that fit the nearest cache, or do not
  const QuantizedWeights w = weights_of(static_cast<std::size_t>(state.range(1)), kFanIn);
  AdaRoundVariables soft(w);
  const auto slope = normal(w.values.size(), 3);
  AdaRoundStep step{AdamStep(0.1, 10)};
  step.regularizer = state.range(0) != 0 ? 0.01F : 0.0F;
  step.beta = 7;
  for (auto _ : state) {
    for (std::size_t m = 0; m < w.rows; ++m)
      soft.step(m, {0, kFanIn}, slope.data() + m * kFanIn, slope.data(), std::array{AdaRoundFactors{1e-9F, 1.0F}},
                step);
  }
  state.counters["s/weight"] =
      benchmark::Counter(static_cast<double>(w.values.size()),
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(adaround_step)->ArgsProduct({{0, 1}, {4, 64}});

void solver(benchmark::State& state) {
  const LayerGeometry g = layer(1);
  GramAccumulator sums(g, cpu_kernels(), 2);
  for (unsigned s = 0; s < 16; ++s) {
    sums.add({1, kChannels, 14, 14}, normal(kChannels * 196, s), normal(kChannels * 196, 100 + s));
  }
  const GramForm form = sums.take();
  const QuantizedWeights w = weights_of(kChannels, kFanIn);
  detent::FinetuneConfig config;
  config.num_iterations = 20;
  config.coordinate_sweeps = state.range(1) != 0 ? 2 : 0;
  config.solver = static_cast<detent::WeightSolver>(state.range(1));
  SolveControl control;
  control.threads = static_cast<std::size_t>(state.range(0));
  for (auto _ : state) {
    switch (config.solver) {
      case detent::WeightSolver::adaround: adaround(w, form, {}, config, cpu_kernels(), control); break;
      case detent::WeightSolver::gptq: gptq(w, form, {}, config, cpu_kernels(), control); break;
      default: coordinate_descent(w, form, {}, nearest(w, {}).integers, config, cpu_kernels(), control);
    }
  }
}
// AdaRound: 20 iterations. GPTQ: both variants.
BENCHMARK(solver)->ArgsProduct({{1, 2}, {1, 3}})->UseRealTime()->Unit(benchmark::kMillisecond);

void errors(benchmark::State& state) {
  const QuantizedWeights w = weights_of(kChannels, kFanIn);
  GramAccumulator sums(layer(1), cpu_kernels(), 2);
  sums.add({1, kChannels, 14, 14}, normal(kChannels * 196, 1), normal(kChannels * 196, 2));
  const GramForm form = sums.take();
  const Solution solution = nearest(w, {});
  for (auto _ : state) benchmark::DoNotOptimize(mean_squared_output_error(w, form, solution));
}
BENCHMARK(errors)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
