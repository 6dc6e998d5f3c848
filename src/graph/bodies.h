// The graphs inside If, Loop and Scan nodes.
#pragma once

#include <vector>

#include "onnx/model.h"

namespace detent::graph {

/// Whether the attribute holds one or more graphs.
bool is_body(const onnx::Attribute& attribute) noexcept;
bool has_body(const onnx::Node& node) noexcept;

/// The graphs that the node's attributes hold, parsed; empty for most nodes. Throws bad_input for a damaged one.
std::vector<onnx::Graph> read_bodies(const onnx::Model& model, const onnx::Node& node);

/// For each position before a node, and behind the last: whether a cut there would part the nodes of an unfolded body
/// (onnx/bodies.h) from each other or from the node that holds it.
std::vector<bool> inside_bodies(const onnx::Model& model);

}  // namespace detent::graph
