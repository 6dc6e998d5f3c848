// Which values get 16 bits where some nodes are to have 16-bit activations.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "graph/index.h"
#include "onnx/model.h"
#include "quantization/placement/placement.h"

namespace detent::quantization {

/// Of `placement`, whose nodes and fused activations are known: what the flagged `nodes` (FloatParts::wide_nodes, which
/// may be empty) read and make. Where formats are given, also what operators without weights carry from them and to
/// them, as far as no product of 8 bits reads it.
std::set<std::string> wide_values(const onnx::Model& model, const graph::Index& index, const std::vector<bool>& nodes,
                                  bool formats_given, const Placement& placement);

}  // namespace detent::quantization
