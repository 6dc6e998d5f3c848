// Fine-tuning: one sweep over the float model and the quantized model side by side, in which the layers are solved one
// after another, each with the inputs that the solved ones before it give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "data/sample.h"
#include "detent/config.h"
#include "detent/device.h"
#include "detent/progress.h"
#include "detent/quantize.h"
#include "exec/session.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "planning/segments.h"
#include "profile/trace.h"
#include "shim/ranks.h"
#include "solve/layers/problem.h"
#include "solve/sweep/tuned_layer.h"
#include "store/spool.h"

namespace detent::solve {

/// Bytes. They change no result.
struct MemoryShares {
  std::vector<std::uint64_t> layers;  // for each layer, in the order of find_layers(): its form and buffers
  std::uint64_t together = 0;         // for matrices of several layers that are summed up side by side
  planning::SpoolMemory spool;        // for spooled samples
};

/// What the process, both models' stages and the layers at work leave of a budget goes to the spool. `asked_for`:
/// whether fine-tuning was; if not, the spool and what is summed up side by side get so little that a run's peak stays
/// near that of inference. `types` are of the float model, with the shapes of the samples; `layers` are those of
/// find_layers(). Throws resource when the budget is too small for a layer, naming the smallest that works.
MemoryShares share_memory(std::uint64_t budget, bool asked_for, const onnx::Model& float_model,
                          const graph::ValueTypes& types, const onnx::Model& quantized,
                          const std::vector<TunedLayer>& layers, std::uint64_t samples, const FinetuneConfig& config,
                          std::size_t threads);

/// What share_memory() will find at the least, told before anything is quantized: the peak in bytes, and what of the
/// spool stays in memory not counted; 0 where there is nothing to tune. `selected`: the nodes of the float model that
/// will be quantized.
std::uint64_t planned_memory(std::uint64_t budget, bool asked_for, const onnx::Model& float_model,
                             const graph::ValueTypes& types, const std::vector<bool>& selected, std::uint64_t samples,
                             const FinetuneConfig& config, std::size_t threads);

/// Bytes of samples that wait on disk for the next layers where these do not fit in memory, which has `peak` beside
/// them, as planned_memory() tells it.
std::uint64_t planned_files(std::uint64_t budget, std::uint64_t peak, bool asked_for, const onnx::Model& float_model,
                            const graph::ValueTypes& types, const std::vector<bool>& selected, std::uint64_t samples,
                            const FinetuneConfig& config);

/// Every eighth sample is held back from solving, to judge the result by.
inline constexpr std::size_t kHeldBackEvery = 8;
inline bool is_held_back(std::size_t sample) { return sample % kHeldBackEvery == kHeldBackEvery - 1; }

struct FinetuneOptions {
  const FinetuneConfig& config;
  const DeviceConfig& device;
  /// Where both branches run; null: on the CPU.
  std::shared_ptr<const shim::Device> place = {};
  int threads = 0;
  store::Spool& spool;
  std::optional<double> state_seconds = {};  // how often an unsolved layer's state is saved; unset: never
  MemoryShares memory = {};
  std::filesystem::path directory;  // of the run: solutions are saved there, and found again by a resumed run
  Progress progress = {};
  std::function<void(const LayerTuning&)> solved = {};  // told of each layer
  profile::DeviceActivity* activity = nullptr;          // told what devices do; null: nothing is timed
  std::stop_token stop = {};
  /// Types of the float model with the shapes of one sample, which tell which layers need the float model's outputs;
  /// null: where the model leaves shapes open, all do.
  const graph::ValueTypes* static_types = nullptr;
  /// Whether all targets are symmetric, however many positions there are. Asymmetric ones make up for what the layers
  /// before lose, which is wrong where some of those come to have another format.
  bool symmetric = false;
  /// That share the samples, and the rows of each layer; null: this process has them all.
  shim::Ranks* ranks = nullptr;
};

/// Replaces the integers of `quantized`'s weights (and biases, if asked for) by better ones. A layer keeps nearest
/// rounding where that is better on samples that were held back. `float_types` are of the float model, `layers` what
/// find_layers() found in both. Throws what the runtime, the samples and the spool throw, usage where there are none.
std::vector<LayerTuning> finetune(const onnx::Model& float_model, const graph::ValueTypes& float_types,
                                  onnx::Model& quantized, std::vector<TunedLayer> layers, const exec::Runtime& runtime,
                                  data::SampleSource& source, const FinetuneOptions& options,
                                  std::vector<std::string>& notes);

/// Whether a layer is solved in mini-batches, for a configuration that config::validate() accepts: as asked, or by the
/// number of operations. A memory budget has no say, since the form decides about the result.
bool is_streamed(const LayerGeometry& geometry, const Shape& input_shape, std::uint64_t samples,
                 const FinetuneConfig& config, std::size_t threads);

struct LayerCost {
  std::size_t node = 0;  // of the model
  std::string name;
  bool streamed = false;
  std::uint64_t bytes = 0;  // peak, beside its spooled samples
  double flops = 0;
  LayerGeometry geometry;
  Shape input_shape;
};

/// All layers that the configuration selects and whose input shapes are static in `types`.
std::vector<LayerCost> layer_costs(const onnx::Model& model, const graph::ValueTypes& types,
                                   const FinetuneConfig& config, std::uint64_t samples, std::size_t threads);

/// Bytes that ranks get of each other, all together, where they tune a layer of so many rows: what it takes of the
/// samples that it is fitted to, blocks of its sums, and its integers.
double exchanged_bytes(const LayerCost& cost, const FinetuneConfig& config, std::uint64_t samples);

/// The one that takes most memory; there must be one.
const LayerCost& heaviest(const std::vector<LayerCost>& costs);

}  // namespace detent::solve
