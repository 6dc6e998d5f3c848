// The graphs inside If, Loop and Scan nodes.
#pragma once

#include <vector>

#include "graph/values.h"
#include "onnx/model.h"

namespace detent::graph {

/// Whether the attribute holds one or more graphs.
bool is_body(const onnx::Attribute& attribute) noexcept;
bool has_body(const onnx::Node& node) noexcept;

/// The graphs that the node's attributes hold, parsed; empty for most nodes. Throws bad_input for a damaged one.
std::vector<onnx::Graph> read_bodies(const onnx::Model& model, const onnx::Node& node);

/// For each position before a node, and behind the last: whether a cut there would part the nodes of an unfolded body
/// (onnx/bodies.h) from each other or from the node that holds it.
std::vector<bool> cuts_inside_bodies(const onnx::Model& model);

/// States the ranks of what the unfolded bodies of Scan nodes give, where the model does not: the runtime wants to know
/// them, and does not find them behind an observer. Returns bodies (as in Node::body()) with a rank that `types` lack.
std::vector<int> state_scan_ranks(onnx::Model& model, const ValueTypes& types);

}  // namespace detent::graph
