// A model in the form that ONNX Runtime gives it for calibration: what is in memory at a time follows from this form,
// not from the file's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/index.h"
#include "graph/values.h"
#include "onnx/model.h"

namespace detent::planning {

/// Only for graph::liveness(): the model cannot be run.
struct Executed {
  onnx::Model model;
  graph::ValueTypes types;
};

/// Channels in a block of the runtime's blocked layout on this machine; 0 where it has none.
std::int64_t channel_block();

/// The nodes in the order that the runtime takes. Nodes that it does not let write over their input, though one could,
/// go by made-up operator types. With `block` channels to a block, convolutions that run in the blocked layout are
/// three nodes: one brings the input into that layout (once for all that read it), one computes, and one brings the
/// result back, because an observer reads it. `types` must be of static shapes.
Executed as_executed(const onnx::Model& model, const graph::Index& index, const graph::ValueTypes& types,
                     const std::vector<std::string>& observed, std::int64_t block);

}  // namespace detent::planning
