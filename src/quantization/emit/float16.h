// 16-bit floating point: float16 or bfloat16 nodes, weights and values, with casts where they meet float32.
#pragma once

#include "detent/config.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "quantization/emit/emitted.h"
#include "quantization/floats/float_placement.h"

namespace detent::quantization {

/// Gives the nodes that the placement names another type. Each value is cast once, where it is made; constants are
/// stored in the types that their readers want, converted when the model is written. A value of a changed type keeps
/// its name unless it is a graph input or output that keeps its own type, or a body reads it: then the new one is
/// "NAME_float16". `types` are of all values of the model.
onnx::Model emit_floats(onnx::Model model, const graph::ValueTypes& types, const FloatPlacement& placement,
                        FloatType type, bool keep_io_types);

}  // namespace detent::quantization
