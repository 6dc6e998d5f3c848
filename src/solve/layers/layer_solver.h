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
#include "profile/trace.h"
#include "solve/algebra/kernels.h"
#include "solve/algebra/quadratic.h"
#include "solve/layers/input_form.h"
#include "solve/layers/mini_batches.h"
#include "solve/layers/problem.h"
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

// What solving a layer takes of a GPU's memory, told from its shape alone: before a run, and on machines without a GPU.
// The plugin for GPUs works in pieces of these sizes, and its tests hold what it takes against these figures.

/// Allocations begin at multiples of this and count as multiples of it.
inline constexpr std::size_t kDeviceMemoryUnit = 512;
/// Scratch of the libraries on each device: of products, the same for all; of convolutions, at the most.
inline constexpr std::size_t kMatmulScratch = std::size_t{32} << 20;
inline constexpr std::size_t kConvolutionScratch = std::size_t{128} << 20;
/// Blocks that add up the losses of a mini-batch.
inline constexpr unsigned kLossBlocks = 1024;

/// A piece for each device, or for fewer where there are fewer rows: of a layer with groups whole groups. It depends on
/// the number of devices alone.
std::vector<RowRange> share_rows(std::size_t rows, std::size_t groups, std::size_t devices);

/// Positions of a tile of sums, for `rows` of inputs and outputs.
std::size_t device_tile_positions(std::size_t rows);
/// Positions of a layer that mini-batches take at a time, where they are gathered.
std::size_t device_piece_positions(const LayerGeometry& geometry);

/// Whether products with rows of so many inputs are made in bfloat16: rows of 16 bytes have a fast way, the others stay
/// in float32.
bool multiplies_in_bfloat16(DevicePrecision precision, std::size_t positions);
/// The same of a layer's mini-batches: of matrix products only, where inputs and outputs are rows.
bool passes_in_bfloat16(DevicePrecision precision, const LayerGeometry& geometry, std::size_t rows);

/// Sums over samples of this shape.
std::uint64_t gram_sums_bytes(const LayerGeometry& geometry, const Shape& input_shape);
/// Solving `rows` of `groups` groups in Gram form, the matrix included; scratch apart.
std::uint64_t gram_rows_bytes(std::size_t rows, std::size_t groups, std::size_t positions, std::size_t iterations,
                              DevicePrecision precision);

/// Whether coordinate descent after mini-batches goes by sums on the devices: where their matrix is small beside a
/// device's memory. It depends on the layer alone, as the result must.
bool descends_by_sums(const LayerGeometry& geometry);

/// Of a layer whose rows several devices share.
struct DeviceNeed {
  std::uint64_t sums = 0;              // on one of them, scratch included; 0 for mini-batches
  std::vector<std::uint64_t> solving;  // on each that has rows, scratch included; the sums are on the host by then

  std::uint64_t peak() const noexcept;
};
DeviceNeed device_need(const LayerGeometry& geometry, const Shape& input_shape, bool streamed,
                       const FinetuneConfig& config, DevicePrecision precision, std::size_t devices);

}  // namespace detent::solve
