// Time per element of the loops that every observed activation and every weight goes through, on one thread. Shared
// machines are noisy: read the medians of --benchmark_repetitions=9.
#include <benchmark/benchmark.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "calibration/statistics.h"
#include "quantization/weights.h"

namespace {

using detent::QuantType;
using detent::calibration::Histogram;
using detent::calibration::HistogramScratch;
namespace quantization = detent::quantization;
namespace onnx = detent::onnx;

std::vector<float> normal(std::size_t count, bool relu = false) {
  std::mt19937 random(7);
  std::normal_distribution<float> distribution(0.0F, 1.5F);
  std::vector<float> values(count);
  for (auto& v : values) {
    v = distribution(random);
    if (relu && v < 0) v = 0;
  }
  return values;
}

void per_element(benchmark::State& state, std::size_t count) {
  state.counters["element"] = benchmark::Counter(static_cast<double>(count) * static_cast<double>(state.iterations()),
                                                 benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void scan(benchmark::State& state) {
  const auto values = normal(static_cast<std::size_t>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(detent::calibration::scan(values));
  per_element(state, values.size());
}
BENCHMARK(scan)->Arg(1 << 12)->Arg(1 << 16)->Arg(1 << 22);

void count(benchmark::State& state, bool relu) {
  const auto values = normal(static_cast<std::size_t>(state.range(0)), relu);
  HistogramScratch scratch;
  Histogram histogram;
  for (auto _ : state) {
    scratch.count(values);
    scratch.drain(histogram);
  }
  benchmark::DoNotOptimize(histogram.total());
  per_element(state, values.size());
}
BENCHMARK_CAPTURE(count, normal, false)->Arg(1 << 12)->Arg(1 << 16)->Arg(1 << 20);
BENCHMARK_CAPTURE(count, relu, true)->Arg(1 << 16)->Arg(1 << 20);

struct Weight {
  onnx::Tensor tensor;
  std::optional<std::size_t> axis;
};

Weight weight(std::vector<std::int64_t> dims, std::optional<std::size_t> axis) {
  std::size_t size = 1;
  for (const auto d : dims) size *= static_cast<std::size_t>(d);
  const auto values = normal(size);
  return {onnx::make_tensor<float>("w", onnx::DataType::float32, std::move(dims), values), axis};
}

void extremes(benchmark::State& state, const Weight& w) {
  for (auto _ : state) benchmark::DoNotOptimize(quantization::weight_extremes(w.tensor, w.axis));
  per_element(state, static_cast<std::size_t>(w.tensor.count()));
}

void quantize(benchmark::State& state, const Weight& w) {
  const quantization::WeightFormat format{{QuantType::int8, true}, w.axis};
  const auto params = quantization::weight_params(quantization::weight_extremes(w.tensor, w.axis), format);
  const auto quantized = quantization::quantized_weight(w.tensor, "q", format, params);
  for (auto _ : state) {
    quantized.data.write_to([](std::span<const std::byte> bytes) { benchmark::DoNotOptimize(bytes.data()); });
  }
  per_element(state, static_cast<std::size_t>(w.tensor.count()));
}

}  // namespace

int main(int argc, char** argv) {
  const struct {
    const char* name;
    std::vector<std::int64_t> dims;
    std::optional<std::size_t> axis;
  } kShapes[] = {
      {"tensor", {1024, 1024}, std::nullopt}, {"conv", {256, 256, 3, 3}, 0}, {"conv1x1", {512, 64, 1, 1}, 0},
      {"depthwise", {8192, 1, 3, 3}, 0},      {"matmul", {1024, 1024}, 1},   {"narrow_matmul", {65536, 10}, 1},
      {"one_column", {262144, 1}, 1}};
  for (const auto& shape : kShapes) {
    const Weight w = weight(shape.dims, shape.axis);
    benchmark::RegisterBenchmark((std::string("weight_extremes/") + shape.name).c_str(), extremes, w);
    benchmark::RegisterBenchmark((std::string("quantized_weight/") + shape.name).c_str(), quantize, w);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
