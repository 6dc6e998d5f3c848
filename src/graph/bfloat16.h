// bfloat16 in models that ONNX Runtime's CPU is to tell about, which has no kernels of it.
#pragma once

#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"

namespace detent::graph {

/// Types of bfloat16 become float16, also in bodies, while the bits of constants stay as they are: a model whose values
/// have the same shapes, and which must not run.
void call_bfloat16_float16(onnx::Model& model);
/// bfloat16 becomes float32, as raise_floats() does it of both types; float16 stays.
void raise_bfloat16(onnx::Model& model, const Store& store);

}  // namespace detent::graph
