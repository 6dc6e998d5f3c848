#include "graph/bodies.h"

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "graph/index.h"
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

std::vector<bool> cuts_inside_bodies(const onnx::Model& model) {
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

namespace {

// The runtime tells an unknown rank as 0.
std::optional<std::size_t> told_rank(const ValueTypes& types, const std::string& name) {
  const auto found = types.find(name);
  if (found == types.end() || !found->second.shape || found->second.shape->empty()) return std::nullopt;
  return found->second.shape->size();
}

std::optional<std::size_t> stated_rank(const onnx::Model& model, const Index& index, const std::string& name) {
  const int constant = index.initializer(name);
  if (constant != kNone) return model.graph.initializers[static_cast<std::size_t>(constant)].dims.size();
  for (const auto* infos : {&model.graph.inputs, &model.graph.value_infos}) {
    const auto found = std::find_if(infos->begin(), infos->end(), [&](const auto& info) { return info.name == name; });
    if (found != infos->end() && found->shape) return found->shape->size();
  }
  return std::nullopt;
}

// Of what a body of a Scan gives: as told of it; else a state has the rank that it has at first, and what is put
// together along a new axis has one more outside.
std::optional<std::size_t> rank_in_scan(const onnx::Model& model, const Index& index, const ValueTypes& types,
                                        const onnx::Node& scan, std::size_t output) {
  const auto own = onnx::inputs_before_unfolding(model, scan);
  if (const auto told = told_rank(types, scan.inputs()[own + output])) return told;
  const auto scanned = static_cast<std::size_t>(std::max<std::int64_t>(scan.int_or("num_scan_inputs", 0), 0));
  if (scanned > own) return std::nullopt;
  if (output < own - scanned) {
    const auto stated = stated_rank(model, index, scan.inputs()[output]);
    return stated ? stated : told_rank(types, scan.inputs()[output]);
  }
  if (output >= scan.outputs().size()) return std::nullopt;
  const auto outside = told_rank(types, scan.outputs()[output]);
  return outside ? std::optional(*outside - 1) : std::nullopt;
}

}  // namespace

std::vector<int> state_scan_ranks(onnx::Model& model, const ValueTypes& types) {
  const auto is_scan = [](const onnx::Node& node) { return node.is("Scan") && !node.bodies().empty(); };
  if (std::none_of(model.graph.nodes.begin(), model.graph.nodes.end(), is_scan)) return {};
  const Index index(model);
  std::vector<int> unknown;
  for (const auto& node : model.graph.nodes) {
    if (!is_scan(node)) continue;
    const int body = node.bodies().front();
    auto& outputs = model.bodies[static_cast<std::size_t>(body - 1)].outputs;
    const auto first = onnx::inputs_before_unfolding(model, node);
    bool all = true;
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      if (outputs[o].shape) continue;
      const auto rank = rank_in_scan(model, index, types, node, o);
      all = all && rank.has_value();
      if (!rank) continue;
      const auto found = types.find(node.inputs()[first + o]);
      const auto type = found != types.end() ? found->second.type : outputs[o].type;
      outputs[o] = onnx::make_value_info(outputs[o].name, type, std::vector<onnx::Dim>(*rank));
    }
    if (!all) unknown.push_back(body);
  }
  return unknown;
}

}  // namespace detent::graph
