#include "graph/bodies.h"

#include <algorithm>
#include <span>

#include "base/bytes.h"
#include "onnx/bodies.h"
#include "onnx/write.h"

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

std::vector<int> state_scan_ranks(onnx::Model& model, const ValueTypes& types) {
  std::vector<int> unknown;
  for (const auto& node : model.graph.nodes) {
    if (!node.is("Scan") || node.bodies().empty()) continue;
    const int body = node.bodies().front();
    auto& outputs = model.bodies[static_cast<std::size_t>(body - 1)].outputs;
    const auto names = std::span(node.inputs()).subspan(onnx::own_inputs(model, node));
    bool all = true;
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      if (outputs[o].shape) continue;
      const auto found = types.find(names[o]);
      // The runtime tells an unknown rank as 0.
      const bool known = found != types.end() && found->second.shape && !found->second.shape->empty();
      all = all && known;
      if (!known) continue;
      const std::vector<onnx::Dim> dims(found->second.shape->size());
      outputs[o] = onnx::make_value_info(outputs[o].name, found->second.type, dims);
    }
    if (!all) unknown.push_back(body);
  }
  return unknown;
}

}  // namespace detent::graph
