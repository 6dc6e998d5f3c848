// What the preset `balanced` quantizes: products and convolutions, and what hands integers from one to the next.
#pragma once

#include "graph/index.h"
#include "quantization/placement/gated_activations.h"
#include "quantization/placement/placement.h"

namespace detent::quantization {

/// Looks up rows of a constant: an embedding. There are no multiplications, but the table is often most of a model.
bool is_table(const onnx::Node& node, const graph::Index& index);

/// Keeps in float, of the selected nodes, all that is neither a product, nor a table, nor a carrier: data movement,
/// Relu, Clip, pooling, Concat, Resize and the sum of two branches, where what they read is quantized and what they
/// make is read by a product, or where they follow a convolution and fuse with it. Softmax, normalizations, gates and
/// arithmetic with constants are thus left alone: they have next to no multiplications, and 8 bits ruin them. Results
/// of matrix products that no product reads stay in float as well. The gates named are carriers as well.
FloatParts integer_chains(const onnx::Model& model, const graph::Index& index, const std::vector<bool>& selected,
                          const GateNames& integer_gates = {});

}  // namespace detent::quantization
