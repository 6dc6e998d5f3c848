// Recognises the layers of transformers: attention and MLP in the forms that exporters write, in float and quantized.
#pragma once

#include <optional>

#include "detent/transformer.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/model.h"

namespace detent::graph {

/// What the main graph has of a transformer; nullopt: no attention was found. Nodes stand in topological order. `types`
/// tell the heads of attentions that are written out as products and a Softmax; without them these are not known.
std::optional<Transformer> find_transformer(const onnx::Model& model, const ValueTypes& types);

/// The same of a model as it was read. Afterwards constants may have been computed, so that it is no longer seen that
/// two are one.
std::optional<Transformer> find_transformer(onnx::Model model, const UnfoldLimits& limits);

}  // namespace detent::graph
