// Writes the quantization into the graph: Q/DQ pairs, integer weights and biases.
#pragma once

#include <string>
#include <vector>

#include "onnx/model.h"
#include "quantize/params.h"
#include "quantize/placement.h"

namespace detent::quantization {

/// Changes `model` in place. Names of new nodes and values carry ONNX Runtime's suffixes. Weights are quantized when
/// the model is written. What could not be done as placed is added to `notes`. Under the preset `balanced` what is left
/// in float stays there in ONNX Runtime, too (barriers.h).
void insert(onnx::Model& model, const Placement& placement, const Params& params, const QuantConfig& config,
            std::vector<std::string>& notes);

}  // namespace detent::quantization
