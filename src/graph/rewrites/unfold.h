// Models made static: shapes that are given once and for all, and bodies and functions unfolded into their graph.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"

namespace detent::graph {

/// Gives inputs these shapes, and each symbol of theirs its number throughout the graph's inputs and outputs. What else
/// was said of shapes is forgotten: runtimes infer it. Throws usage for a shape that names no input or does not fit.
Notes fix_input_shapes(onnx::Model& model, const std::map<std::string, std::vector<std::int64_t>>& shapes);

/// Takes away what the model says of its outputs' shapes, and returns it: exporters give axes of outputs names of input
/// axes that are not as long, and the runtime believes them.
std::vector<onnx::ValueInfo> take_output_shapes(onnx::Model& model);
/// Outputs have the shapes that were inferred, else what was said of them.
void give_output_shapes(onnx::Model& model, const ValueTypes& types, const std::vector<onnx::ValueInfo>& said);

/// Shape nodes of axes that are static become constants. Returns how many.
std::size_t fold_shapes(onnx::Model& model, const ValueTypes& types);

/// Inputs with an axis or a rank that is not known.
std::vector<const onnx::ValueInfo*> dynamic_inputs(const onnx::Model& model);

/// "[batch,3,?,?]"
std::string shape_text(const onnx::ValueInfo& value);

}  // namespace detent::graph
