#include "graph/moved_values.h"

#include <vector>

#include "graph/traits.h"

namespace detent::graph {
namespace {

bool takes_parts(const onnx::Node& node) {
  return node.is("Split") || node.is("Slice") || node.is("Gather") || node.is("GatherElements");
}

bool moves(const onnx::Node& node) {
  return takes_parts(node) || node.is("Concat") || node.is("Cast") || has_trait(node, Trait::rearranges);
}

}  // namespace

Moved moved_from(const onnx::Model& model, const Index& index, const std::string& value) {
  Moved moved;
  std::vector<std::string> open{value};
  while (!open.empty()) {
    const auto name = std::move(open.back());
    open.pop_back();
    moved.parts = moved.parts || index.is_output(name);
    for (const int reader : index.consumers(name)) {
      const auto r = static_cast<std::size_t>(reader);
      const auto& node = model.graph.nodes[r];
      if (!moves(node) || !moved.nodes.insert(r).second) continue;
      moved.parts = moved.parts || takes_parts(node);
      open.insert(open.end(), node.outputs().begin(), node.outputs().end());
    }
  }
  return moved;
}

}  // namespace detent::graph
