// Bodies as models of their own, for what the runtime infers about the values in them.
#pragma once

#include <optional>
#include <vector>

#include "graph/index.h"
#include "graph/values.h"
#include "onnx/model.h"

namespace detent::exec {

/// The nodes of a body of the model, with bodies inside of it. What it reads from outside, and its own inputs, are
/// inputs of the graph, with the types and shapes that `types` has of them; `body_of` is onnx::body_of_nodes(). With
/// `of_samples` the shapes are taken to be those of samples at hand, and what a Loop carries to keep its own. nullopt
/// where the body has no nodes, or a value that it reads has a type that no input of a model can have.
std::optional<onnx::Model> body_model(const onnx::Model& model, const graph::Index& index,
                                      const std::vector<int>& body_of, int body, const graph::ValueTypes& types,
                                      bool of_samples);

}  // namespace detent::exec
