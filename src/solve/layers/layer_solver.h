// Solves layers on the CPU, or on GPUs by a plugin.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "detent/config.h"
#include "detent/device.h"
#include "profile/device_activity.h"
#include "solve/algebra/kernels.h"
#include "solve/layers/input_form.h"
#include "solve/layers/problem.h"
#include "solve/layers/samples.h"
#include "solve/layers/solver.h"

namespace detent::solve {

/// One layer at a time, one thread at a time. The contracts are those of the functions of the same names in solver.h,
/// streamed.h and input_form.h.
class LayerSolver {
 public:
  virtual ~LayerSolver() = default;
  /// How many bytes of Gram matrices may be summed up at the same time, apart from the host's own budget.
  virtual std::uint64_t sums_budget() const = 0;
  /// Before a layer is begun: throws resource when it would not fit on the device that solves it. `layer` names it in
  /// the message; its inputs have this shape.
  virtual void check_memory(const std::string& layer, const LayerGeometry& geometry, const Shape& input_shape,
                            bool streamed, const FinetuneConfig& config) = 0;
  /// `threads` of the host.
  virtual std::unique_ptr<GramSums> sums(const LayerGeometry& geometry, std::size_t threads) = 0;
  virtual Solution solve(const QuantizedWeights& weights, const GramFormOrRawInputs& form, std::span<const float> bias,
                         const FinetuneConfig& config, const SolveControl& control) = 0;
  virtual Solution solve_streamed(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                  std::span<const float> bias, LayerSamples& samples, const FinetuneConfig& config,
                                  const SolveControl& control) = 0;
  virtual double reconstruction_error(const QuantizedWeights& weights, const LayerGeometry& geometry,
                                      const Solution& solution, LayerSamples& samples, const SolveControl& control) = 0;
  /// Notes for the user about how layers were solved, after the last one.
  virtual std::vector<std::string> notes() const { return {}; }
};

/// `team`: whose ranks are given the same samples and share what is to be summed up; sums are then a collective.
std::unique_ptr<LayerSolver> cpu_solver(const Kernels& kernels, shim::Team team = {});

/// GPUs, by the plugin for them (see shim::load_cuda_plugin). `kernels` of the CPU take what does not go to a device,
/// and must outlive the solver; so must `activity`, which is told what the devices do, with times (null: nothing is
/// timed). Throws device; resource for a budget that a device does not have.
std::unique_ptr<LayerSolver> cuda_solver(const DeviceConfig& config, const Kernels& kernels,
                                         profile::DeviceActivity* activity);

/// The plugin's entry for that. Null: it is of another version.
using CudaSolverEntry = LayerSolver*(int version, const DeviceConfig& config, const Kernels& kernels,
                                     profile::DeviceActivity* activity);
inline constexpr const char* kCudaSolverEntryName = "detent_cuda_solver";
/// Raised when anything that crosses the border changes. Plugin and binary come from the same compiler.
inline constexpr int kCudaSolverVersion = 5;

}  // namespace detent::solve
