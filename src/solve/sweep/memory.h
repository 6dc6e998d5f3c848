// How fine-tuning shares out the memory that a run may take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/sample.h"
#include "detent/config.h"
#include "exec/session.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "planning/spool_memory.h"
#include "solve/sweep/tuned_layer.h"

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

}  // namespace detent::solve
