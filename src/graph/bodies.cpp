#include "graph/bodies.h"

#include <algorithm>

#include "base/bytes.h"

namespace detent::graph {

bool is_body(const onnx::Attribute& attribute) noexcept {
  using Kind = onnx::Attribute::Kind;
  return attribute.kind() == Kind::g || attribute.kind() == Kind::graphs;
}

bool has_body(const onnx::Node& node) noexcept {
  return std::any_of(node.attributes().begin(), node.attributes().end(), is_body);
}

std::vector<onnx::Graph> read_bodies(const onnx::Model& model, const onnx::Node& node) {
  std::vector<onnx::Graph> bodies;
  for (const auto& attribute : node.attributes()) {
    if (!is_body(attribute)) continue;
    for (const auto& wire : attribute.as_graphs()) {
      const bool in_file = model.file && model.file->contains(as_byte_span(wire.view()));
      bodies.push_back(
          onnx::read_graph(wire, in_file ? model.file : nullptr, *model.external, "body of " + node.label()));
    }
  }
  return bodies;
}

}  // namespace detent::graph
