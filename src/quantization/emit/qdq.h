// The Q/DQ form: QuantizeLinear/DequantizeLinear pairs, integer weights and biases behind a DequantizeLinear.
#pragma once

#include "detent/config.h"
#include "onnx/model.h"
#include "quantization/assignment.h"
#include "quantization/emit/emitted.h"

namespace detent::quantization {

/// `model` is the float model that the assignment is of. Names of new nodes and values carry ONNX Runtime's suffixes.
/// Weights are quantized when the model is written. Under the preset `balanced` what is left in float stays there in
/// ONNX Runtime, too (barriers.h).
Emitted emit_qdq(onnx::Model model, const Assignment& assignment, const QuantConfig& config,
                 const graph::ValueTypes& types = {});

}  // namespace detent::quantization
