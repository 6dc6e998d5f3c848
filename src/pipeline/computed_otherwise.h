// Layers of a written model that the runtime computes otherwise than their integers say.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "detent/quantize.h"
#include "onnx/model.h"

namespace detent::pipeline {

struct ComputedOtherwise {
  std::vector<std::string> nodes;  // by Node::id(), worst first
  std::string words;               // for a note: "the runtime computes 'conv1' otherwise than its integers say"
};

/// Of QuantizeOptions::output, on its first samples: those that `prepared` has under the same name. None where the
/// samples can be read only once, and where both models side by side, of which one takes `activations` at its peak, do
/// not keep to the memory budget. Throws what verify() throws.
ComputedOtherwise computed_otherwise(const QuantizeOptions& options, const onnx::Model& prepared,
                                     std::uint64_t activations);

}  // namespace detent::pipeline
