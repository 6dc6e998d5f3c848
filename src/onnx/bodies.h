// Bodies of If, Loop and Scan, unfolded: their nodes stand among those of the main graph, so that whatever works on a
// graph works on them, and are put back when the model is written.
//
// All names are unique in the model then. A node that holds bodies reads what it read before, and behind that the
// outputs of each body. What a body has as inputs is made by a node of type kBodyInputs; constants of a body are
// initializers of the model.
#pragma once

#include <vector>

#include "onnx/model.h"

namespace detent::onnx {

/// Its domain is kPrivateDomain. It reads nothing; it never reaches a file or the runtime.
inline constexpr const char* kBodyInputs = "BodyInputs";

/// For each node of the main graph, in topological order, the body that it goes to: the one that it belongs to, or one
/// inside of that whose values it reads. A body whose node is not in the graph counts as the one around it. Throws
/// internal where a node reads values of two bodies neither of which is inside the other.
std::vector<int> body_of_nodes(const Model& model);
/// Whether body `inner` is `outer` or inside of it; all are inside of 0.
bool is_inside(const Model& model, int inner, int outer);
/// How many inputs of a node that holds bodies it read before they were unfolded.
std::size_t inputs_before_unfolding(const Model& model, const Node& node);

struct FoldedGraph {
  std::vector<Node> nodes;
  std::vector<ValueInfo> value_infos;
};
/// The main graph's nodes with the bodies in them. A DequantizeLinear that another body reads is repeated there: the
/// runtime takes a product as one on integers only where both stand in one graph.
FoldedGraph fold_bodies(const Model& model);

}  // namespace detent::onnx
