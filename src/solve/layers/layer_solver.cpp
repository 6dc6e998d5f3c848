#include "solve/layers/layer_solver.h"

#include <fmt/format.h>

#include <limits>

#include "base/error.h"
#include "shim/library.h"
#include "solve/layers/streamed.h"

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

}  // namespace detent::solve
