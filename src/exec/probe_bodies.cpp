#include "exec/probe_bodies.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "onnx/bodies.h"
#include "onnx/write.h"

namespace detent::exec {
namespace {

using onnx::DataType;
using onnx::Node;

bool is_static(const graph::ValueType& type) {
  return type.shape && std::all_of(type.shape->begin(), type.shape->end(), [](const auto& d) { return d.is_static(); });
}

graph::ValueType known(const graph::ValueTypes& types, const std::string& value) {
  const auto found = types.find(value);
  if (found == types.end()) return {};
  auto type = found->second;
  if (type.shape && type.shape->empty()) type.shape.reset();  // the runtime tells an unknown rank as 0
  return type;
}

// One step of a value that a Scan goes through.
graph::ValueType slice_of(graph::ValueType type, const Node& scan, std::size_t position) {
  const auto* axes = scan.attribute("scan_input_axes");
  const auto given = axes == nullptr ? std::vector<std::int64_t>() : axes->as_ints();
  std::int64_t axis = position < given.size() ? given[position] : 0;
  if (!type.shape) return type;
  if (axis < 0) axis += std::ssize(*type.shape);
  if (axis < 0 || axis >= std::ssize(*type.shape)) return {type.type, std::nullopt};
  type.shape->erase(type.shape->begin() + axis);
  return type;
}

// What the holder of a body gives it as an input.
graph::ValueType given(const Node& holder, std::size_t own_inputs, std::size_t input, const graph::ValueTypes& types,
                       bool of_samples) {
  if (holder.is("Loop") && input < 2) return {input == 0 ? DataType::int64 : DataType::boolean, std::nullopt};
  if (input >= own_inputs) return {};
  auto type = known(types, holder.inputs()[input]);
  if (holder.is("Scan")) {
    const std::size_t states = own_inputs - static_cast<std::size_t>(holder.int_or("num_scan_inputs", 0));
    if (input >= states) return slice_of(std::move(type), holder, input - states);
  } else if (!of_samples) {
    type.shape.reset();  // it may change from one step to the next
  }
  return type;
}

onnx::ValueInfo input_of(const onnx::ValueInfo& declared, const std::string& name, graph::ValueType type,
                         bool of_samples) {
  if (type.type == DataType::undefined) type.type = declared.type;
  if (declared.shape && !(of_samples && is_static(type))) type.shape = declared.shape;
  return onnx::make_value_info(name, type.type, std::move(type.shape));
}

}  // namespace

std::optional<onnx::Model> body_model(const onnx::Model& model, const graph::Index& index,
                                      const std::vector<int>& body_of, int body, const graph::ValueTypes& types,
                                      bool of_samples) {
  const auto& nodes = model.graph.nodes;
  const auto& declared = model.bodies[static_cast<std::size_t>(body - 1)].inputs;
  onnx::Model part = model;
  part.graph.nodes.clear();
  part.graph.initializers.clear();
  part.graph.inputs.clear();
  part.graph.outputs.clear();
  const auto holder = std::find_if(nodes.begin(), nodes.end(), [&](const Node& node) {
    return std::find(node.bodies().begin(), node.bodies().end(), body) != node.bodies().end();
  });
  if (holder == nodes.end()) return std::nullopt;
  std::set<std::string> known_names;
  bool has_nodes = false;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    if (!onnx::is_inside(model, body_of[n], body)) continue;
    known_names.insert(nodes[n].outputs().begin(), nodes[n].outputs().end());
    if (nodes[n].op_type() != onnx::kBodyInputs || body_of[n] != body) {
      has_nodes = has_nodes || body_of[n] == body;
      part.graph.nodes.push_back(nodes[n]);
      continue;
    }
    for (std::size_t i = 0; i < nodes[n].outputs().size() && i < declared.size(); ++i)
      part.graph.inputs.push_back(input_of(declared[i], nodes[n].outputs()[i],
                                           given(*holder, onnx::own_inputs(model, *holder), i, types, of_samples),
                                           of_samples));
  }
  for (const auto& node : part.graph.nodes) {
    for (const auto& name : node.inputs()) {
      if (name.empty() || !known_names.insert(name).second) continue;
      if (const int i = index.initializer(name); i != graph::kNone) {
        part.graph.initializers.push_back(model.graph.initializers[static_cast<std::size_t>(i)]);
      } else {
        auto type = known(types, name);
        part.graph.inputs.push_back(onnx::make_value_info(name, type.type, std::move(type.shape)));
      }
    }
  }
  std::erase_if(part.graph.value_infos, [&](const auto& info) { return !known_names.contains(info.name); });
  const auto& inputs = part.graph.inputs;
  const bool typed =
      std::all_of(inputs.begin(), inputs.end(), [](const auto& info) { return info.type != DataType::undefined; });
  return has_nodes && typed ? std::optional(std::move(part)) : std::nullopt;
}

}  // namespace detent::exec
