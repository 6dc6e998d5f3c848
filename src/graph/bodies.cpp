#include "graph/bodies.h"

#include <algorithm>

#include "base/bytes.h"
#include "onnx/bodies.h"

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

std::vector<bool> inside_bodies(const onnx::Model& model) {
  std::vector<bool> inside(model.graph.nodes.size() + 1, false);
  if (model.bodies.empty()) return inside;
  const auto body_of = onnx::body_of_nodes(model);
  std::vector<std::size_t> first(model.bodies.size() + 1, inside.size());  // node of each body
  for (std::size_t n = 0; n < body_of.size(); ++n) {
    for (int body = body_of[n]; body != 0; body = model.bodies[static_cast<std::size_t>(body - 1)].around) {
      auto& found = first[static_cast<std::size_t>(body)];
      found = std::min(found, n);
    }
  }
  for (std::size_t n = 0; n < body_of.size(); ++n) {
    for (const int body : model.graph.nodes[n].bodies()) {
      for (std::size_t cut = first[static_cast<std::size_t>(body)] + 1; cut <= n; ++cut) inside[cut] = true;
    }
  }
  return inside;
}

}  // namespace detent::graph
