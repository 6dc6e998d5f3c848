// 16-bit floating point: float16 or bfloat16 nodes, weights and values, with casts where they meet float32.
#pragma once

#include "quantization/assignment.h"
#include "quantization/emit/barriers.h"

namespace detent::quantization {

/// Gives the nodes that Assignment::floats names another type. Each value is cast once, where it is made; constants are
/// stored in the types that their readers want, converted when the model is written. A value of a changed type keeps
/// its name unless it is a graph input or output that keeps its own type, or a body reads it: then the new one is
/// "NAME_float16". The types of all values are known.
Emitted emit_floats(FloatModel model, const Assignment& assignment);

// The form with block floats: an operator of AMD Quark's behind each value and constant, which rounds it.

/// Rounds what Assignment::placement marks to its block_float. Blocks lie along the axis that a product adds up, or
/// that Softmax works on; else along axis 1, or the last of what a MatMul made. A value whose readers want different
/// axes gets an operator for each. Weights stay as they are in the file. Names are those that Quark gives.
Emitted emit_block_floats(FloatModel model, const Assignment& assignment);

}  // namespace detent::quantization
