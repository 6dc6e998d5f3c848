// 16-bit floating point: float16 or bfloat16 nodes, weights and values, with casts where they meet float32.
#pragma once

#include <cstddef>

#include "detent/config.h"
#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/emit/barriers.h"
#include "quantization/floats/float_placement.h"
#include "quantization/placement/placement.h"

namespace detent::quantization {

/// Gives the nodes that the placement names another type. Each value is cast once, where it is made; constants are
/// stored in the types that their readers want, converted when the model is written. A value of a changed type keeps
/// its name unless it is a graph input or output that keeps its own type, or a body reads it: then the new one is
/// "NAME_float16". `types` are of all values of the model.
onnx::Model emit_floats(onnx::Model model, const graph::ValueTypes& types, const FloatPlacement& placement,
                        FloatType type, bool keep_io_types);

// The form with block floats: an operator of AMD Quark's behind each value and constant, which rounds it.

struct BlockFloatModel {
  onnx::Model model;
  std::size_t operators = 0;  // that were added
};

/// `model` is the float model that the placement is of. Blocks lie along the axis that a product adds up, or that
/// Softmax works on; else along axis 1, or the last of what a MatMul made. A value whose readers want different axes
/// gets an operator for each. Weights stay as they are in the file. Names are those that Quark gives.
BlockFloatModel emit_block_floats(onnx::Model model, const graph::ValueTypes& types, const Placement& placement,
                                  BlockFloat format);

}  // namespace detent::quantization
