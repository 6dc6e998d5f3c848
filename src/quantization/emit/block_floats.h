// The form with block floats: an operator of AMD Quark's behind each value and constant, which rounds it.
#pragma once

#include <cstddef>

#include "detent/config.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "quantization/placement/placement.h"

namespace detent::quantization {

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
