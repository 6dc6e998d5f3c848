#include "solve/layers/layer_solver.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "shim/library.h"
#include "solve/layers/input_descent.h"
#include "solve/layers/streamed.h"
#include "store/buffers.h"

namespace detent::solve {
namespace {

class CpuSolver final : public LayerSolver {
 public:
  CpuSolver(const Kernels& kernels, shim::Team team) : kernels_(kernels), team_(std::move(team)) {}

  std::uint64_t sums_budget() const override { return std::numeric_limits<std::uint64_t>::max(); }
  void check_memory(const std::string&, const LayerGeometry&, const Shape&, bool, const FinetuneConfig&) override {}
  std::unique_ptr<GramSums> sums(const LayerGeometry& geometry, std::size_t threads) override {
    return std::make_unique<GramAccumulator>(geometry, kernels_, threads, team_);
  }
  Solution solve(const QuantizedWeights& weights, const GramFormOrRawInputs& form, std::span<const float> bias,
                 const FinetuneConfig& config, const SolveControl& control) override {
    return solve::solve(weights, form, bias, config, kernels_, control);
  }
  Solution solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry, std::span<const float> bias,
                          LayerSamples& samples, const FinetuneConfig& config, const SolveControl& control) override {
    return solve::solve_streamed(weights, geometry, bias, samples, config, kernels_, control);
  }
  double reconstruction_error(const QuantizedWeights& weights, const LayerGeometry& geometry, const Solution& solution,
                              LayerSamples& samples, const SolveControl& control) override {
    return solve::reconstruction_error(weights, geometry, solution, samples, kernels_, control);
  }

 private:
  const Kernels& kernels_;
  shim::Team team_;
};

}  // namespace

std::unique_ptr<LayerSolver> cpu_solver(const Kernels& kernels, shim::Team team) {
  return std::make_unique<CpuSolver>(kernels, std::move(team));
}

std::unique_ptr<LayerSolver> cuda_solver(const DeviceConfig& config, const Kernels& kernels,
                                         profile::DeviceActivity* activity) {
  const shim::Library plugin = shim::load_cuda_plugin({});
  const auto entry = reinterpret_cast<CudaSolverEntry*>(plugin.symbol(kCudaSolverEntryName));
  std::unique_ptr<LayerSolver> solver(entry(kCudaSolverVersion, config, kernels, activity));
  if (!solver) {
    throw device_error(fmt::format("the plugin '{}' is of another version than this detent", plugin.name()),
                       "use the libdetent_cuda.so that was built with it");
  }
  return solver;
}

namespace {

constexpr std::size_t kTileBytes = std::size_t{64} << 20;
constexpr std::size_t kMostPositions = 4096;                 // that one product sums: float sums of more lose more
constexpr std::size_t kPieceBytes = std::size_t{128} << 20;  // of gathered positions
constexpr std::uint64_t kBfloat16 = 2;

std::uint64_t elements(const Shape& shape) {
  return static_cast<std::uint64_t>(std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>()));
}

// Of `rows` of `groups` groups, sums and scratch included.
std::uint64_t descent_bytes(const LayerGeometry& g, const Shape& input_shape, std::size_t rows, std::size_t groups) {
  return kMatmulScratch + kConvolutionScratch +
         std::max(gram_sums_bytes(g, input_shape),
                  gram_rows_bytes(rows, groups, static_cast<std::size_t>(g.fan_in()), 0, DevicePrecision::float32));
}

// One sample's way forward and backward; scratch apart.
std::uint64_t pass_bytes(const LayerGeometry& g, const Shape& input_shape, std::size_t rows,
                         DevicePrecision precision) {
  const std::uint64_t positions = Patches(g, input_shape).positions();
  const auto outputs = static_cast<std::uint64_t>(g.outputs);
  if (g.kind == LayerKind::product) {
    const auto fan_in = static_cast<std::uint64_t>(g.fan_in());
    const std::uint64_t narrow =
        passes_in_bfloat16(precision, g, rows) ? kBfloat16 * (positions * (fan_in + rows) + rows * fan_in) : 0;
    return sizeof(float) * positions * outputs + narrow + 4 * kDeviceMemoryUnit;
  }
  const std::uint64_t piece = std::min<std::uint64_t>(positions, device_piece_positions(g));
  const std::uint64_t gathered = piece * (static_cast<std::uint64_t>(g.groups * g.fan_in()) + 2 * outputs);
  // Of convolutions: outputs, inputs with channels last, a filter and its gradient in another order.
  return sizeof(float) * std::max(gathered, positions * outputs + elements(input_shape)) + 4 * kDeviceMemoryUnit;
}

// In mini-batches, scratch included: an upper bound.
std::uint64_t pass_rows_bytes(const LayerGeometry& g, const Shape& input_shape, std::size_t rows,
                              std::size_t iterations, DevicePrecision precision) {
  const std::uint64_t values = rows * static_cast<std::uint64_t>(g.fan_in());
  const std::uint64_t sample = elements(input_shape) + elements(g.output_shape(input_shape));
  constexpr std::uint64_t kArrays = 3 + 5;  // filter, gradient, slope; variable, moments, rounded value, base
  return kMatmulScratch + kConvolutionScratch + pass_bytes(g, input_shape, rows, precision) +
         sizeof(float) * (kArrays * values + 16 * rows + 2 * sample + 4 * iterations) + 6 * store::kBlock +
         sizeof(double) * kLossBlocks + 32 * kDeviceMemoryUnit;
}

}  // namespace

std::vector<RowRange> share_rows(std::size_t rows, std::size_t groups, std::size_t devices) {
  const std::size_t units = groups > 1 ? groups : rows;
  const std::size_t unit = rows / std::max<std::size_t>(units, 1);
  const std::size_t pieces = std::min(units, devices);
  std::vector<RowRange> ranges;
  for (std::size_t i = 0; i < pieces; ++i) {
    ranges.push_back({units * i / pieces * unit, units * (i + 1) / pieces * unit});
  }
  return ranges;
}

std::size_t device_tile_positions(std::size_t rows) {
  return std::clamp<std::size_t>(kTileBytes / sizeof(float) / std::max<std::size_t>(rows, 1) / 16 * 16, 128,
                                 kMostPositions);
}

// A number that depends on the layer alone.
std::size_t device_piece_positions(const LayerGeometry& g) {
  const auto rows = static_cast<std::size_t>(g.groups * g.fan_in());
  return std::max<std::size_t>(kPieceBytes / sizeof(float) / std::max<std::size_t>(rows, 1) / 16 * 16, 256);
}

bool multiplies_in_bfloat16(DevicePrecision precision, std::size_t positions) {
  return precision == DevicePrecision::bfloat16 && positions % 8 == 0;
}

bool passes_in_bfloat16(DevicePrecision precision, const LayerGeometry& g, std::size_t rows) {
  return g.kind == LayerKind::product && multiplies_in_bfloat16(precision, static_cast<std::size_t>(g.fan_in())) &&
         rows % 8 == 0;
}

std::uint64_t gram_sums_bytes(const LayerGeometry& g, const Shape& input_shape) {
  const auto fan_in = static_cast<std::uint64_t>(g.fan_in()), groups = static_cast<std::uint64_t>(g.groups);
  const auto outputs = static_cast<std::uint64_t>(g.outputs);
  const std::uint64_t rows = groups * fan_in + outputs;
  const std::uint64_t targets = elements(g.output_shape(input_shape));
  const std::uint64_t sample = elements(input_shape) + targets + targets / outputs;  // and the positions' numbers
  return sizeof(float) *
             (rows * device_tile_positions(rows) + groups * fan_in * fan_in + outputs * fan_in + 2 * sample) +
         sizeof(double) * (groups * fan_in + 2 * outputs) + 9 * kDeviceMemoryUnit;
}

std::uint64_t gram_rows_bytes(std::size_t rows, std::size_t groups, std::size_t positions, std::size_t iterations,
                              DevicePrecision precision) {
  const std::uint64_t matrix = groups * positions * positions, values = rows * positions;
  // Linear part and dequantized values; of a method at the most variable, moments, rounded value, what moved, start,
  // slope, offset and integers.
  constexpr std::uint64_t kArrays = 2 + 9;
  return sizeof(float) * (matrix + kArrays * values + 12 * rows) +
         (multiplies_in_bfloat16(precision, positions) ? kBfloat16 * (matrix + values) : 0) + iterations * 16 +
         24 * kDeviceMemoryUnit;
}

bool descends_by_sums(const LayerGeometry& g) {
  constexpr std::uint64_t kMostMatrix = std::uint64_t{256} << 20;
  const auto fan_in = static_cast<std::uint64_t>(g.fan_in());
  return sizeof(float) * static_cast<std::uint64_t>(g.groups) * fan_in * fan_in <= kMostMatrix;
}

std::uint64_t DeviceNeed::peak() const noexcept {
  return std::max(sums, solving.empty() ? 0 : *std::max_element(solving.begin(), solving.end()));
}

DeviceNeed device_need(const LayerGeometry& g, const Shape& input_shape, bool streamed, const FinetuneConfig& config,
                       DevicePrecision precision, std::size_t devices) {
  const auto rows = static_cast<std::size_t>(g.outputs), groups = static_cast<std::size_t>(g.groups);
  DeviceNeed need;
  if (!streamed) need.sums = kMatmulScratch + gram_sums_bytes(g, input_shape);
  for (const RowRange range : share_rows(rows, groups, devices)) {
    const std::size_t own_groups = groups > 1 ? range.count() / (rows / groups) : 1;
    // Errors on samples held back are found by a pass in float32, without convolutions.
    const std::uint64_t errors =
        pass_rows_bytes(g, input_shape, range.count(), 0, DevicePrecision::float32) - kConvolutionScratch;
    const std::uint64_t solving =
        streamed ? pass_rows_bytes(g, input_shape, range.count(), config.num_iterations, precision)
                 : kMatmulScratch + gram_rows_bytes(range.count(), own_groups, static_cast<std::size_t>(g.fan_in()),
                                                    config.num_iterations, precision);
    const std::uint64_t descent = streamed && uses_sample_descent(config) && descends_by_sums(g)
                                      ? descent_bytes(g, input_shape, range.count(), own_groups)
                                      : 0;
    need.solving.push_back(std::max({solving, errors, descent}));
  }
  return need;
}

}  // namespace detent::solve
