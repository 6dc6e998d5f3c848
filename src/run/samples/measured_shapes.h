// Shapes that depend on values, as a sample has them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "data/sample.h"
#include "graph/values.h"
#include "onnx/model.h"
#include "run/context.h"

namespace detent::run {

/// Tensors that nodes make and whose shapes `types` do not tell.
std::vector<std::string> values_of_unknown_shape(const onnx::Model& model, const graph::ValueTypes& types);

/// Gives `values` the shape of no element.
void set_empty(graph::ValueTypes& types, const std::vector<std::string>& values);

/// Runs the first sample in one piece and gives `values` the shapes that they have in it: the largest, where a value is
/// made several times; that of no element, where it is not made. The source is rewound.
void measure_shapes(const Context& context, const onnx::Model& model, data::SampleSource& source,
                    const std::vector<std::string>& values, graph::ValueTypes& types);

}  // namespace detent::run
