// Fine-tuning: one sweep over the float model and the quantized model side by side, in which the layers are solved one
// after another, each with the inputs that the solved ones before it give.
#pragma once

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
#include "graph/values.h"
#include "onnx/model.h"
#include "profile/device_activity.h"
#include "shim/ranks.h"
#include "solve/sweep/memory.h"
#include "solve/sweep/tuned_layer.h"
#include "store/spool.h"

namespace detent::solve {

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

}  // namespace detent::solve
