// What a target wants of several values together: one scale for all that an operator joins, no pair within a fused sum.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "graph/index.h"
#include "quantization/placement/placement.h"

namespace detent::quantization {

/// Inputs of operators of these types take scale and zero point of the output, as far as they are activations that a
/// node of the graph makes.
void share_output_scales(const onnx::Model& model, const graph::Index& index,
                         const std::vector<std::string_view>& op_types, Placement& placement);

/// Adds, of each quantized sum of two activations, the branch that a convolution makes for it alone: a runtime that
/// adds within the convolution's kernel does so before rounding. The branches are observed all the same: they are
/// quantized where a fallback leaves the other summand in float.
void add_fused_branches(const onnx::Model& model, const graph::Index& index, Placement& placement,
                        std::set<std::string>& values);

}  // namespace detent::quantization
