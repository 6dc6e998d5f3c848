// bfloat16 in models that ONNX Runtime's CPU is to tell about, which has no kernels of it.
#pragma once

#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"

namespace detent::graph {

/// Types of bfloat16 become float16, also in bodies, while the bits of constants stay as they are: a model whose values
/// have the same shapes, and which must not run.
void relabel_bfloat16_as_float16(onnx::Model& model);
/// bfloat16 becomes float32, as half_floats_to_float32() does it of both types; float16 stays.
void bfloat16_to_float32(onnx::Model& model, const Store& store);

}  // namespace detent::graph
