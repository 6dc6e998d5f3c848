// Layers of a written model that the runtime computes otherwise than their integers say.
#pragma once

#include <string>
#include <vector>

#include "detent/quantize.h"
#include "onnx/model.h"

namespace detent::pipeline {

/// Of QuantizeOptions::output, on its first samples: nodes by Node::id(), worst first, that `prepared` has under the
/// same name. None where the samples can be read only once. Throws what verify() throws.
std::vector<std::string> computed_otherwise(const QuantizeOptions& options, const onnx::Model& prepared);

/// What a note says of them: "the runtime computes 'conv1' otherwise than its integers say".
std::string words_for(const std::vector<std::string>& nodes);

}  // namespace detent::pipeline
