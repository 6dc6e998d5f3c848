#include "exec/probe_bodies.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "onnx/bodies.h"
#include "onnx/write.h"

namespace detent::exec {
namespace {

using onnx::DataType;
using onnx::Node;

constexpr std::size_t kNowhere = std::numeric_limits<std::size_t>::max();

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

onnx::Model model_without_graph(const onnx::Model& model) {
  const auto& graph = model.graph;
  return {model.path,
          model.file,
          model.external,
          model.ir_version,
          model.opsets,
          {{}, {}, {}, {}, {}, graph.sparse_initializers, graph.other},
          {},
          model.functions,
          model.other};
}

BodyParts::BodyParts(const onnx::Model& model)
    : model_(model),
      index_(model),
      body_of_(onnx::body_of_nodes(model)),
      rest_(model_without_graph(model)),
      holders_(model.bodies.size() + 1, kNowhere),
      nodes_(model.bodies.size() + 1),
      inner_(model.bodies.size() + 1) {
  const auto& nodes = model.graph.nodes;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const auto at = static_cast<std::size_t>(body_of_[n]);
    nodes_[at].push_back(n);
    inner_[at].insert(inner_[at].end(), nodes[n].bodies().begin(), nodes[n].bodies().end());
    for (const int body : nodes[n].bodies()) holders_[static_cast<std::size_t>(body)] = n;
  }
  for (const auto& info : model.graph.value_infos) stated_[info.name] = &info;
}

// Nodes in the model's order, outer bodies before those inside of them.
BodyParts::Inside BodyParts::inside(int body) const {
  Inside found;
  std::vector<int> open{body};
  while (!open.empty()) {
    const auto at = static_cast<std::size_t>(open.back());
    found.bodies.push_back(open.back());
    open.pop_back();
    found.nodes.insert(found.nodes.end(), nodes_[at].begin(), nodes_[at].end());
    open.insert(open.end(), inner_[at].begin(), inner_[at].end());
  }
  std::sort(found.nodes.begin(), found.nodes.end());
  return found;
}

// The body itself becomes the main graph, and those inside of it get new numbers. Its inputs become the graph's.
void BodyParts::add_nodes(onnx::Model& part, int body, const graph::ValueTypes& types, bool of_samples) const {
  const auto [bodies, nodes] = inside(body);
  std::unordered_map<int, int> numbers{{body, 0}};
  for (const int inner : bodies) {
    if (inner == body) continue;
    part.bodies.push_back(model_.bodies[static_cast<std::size_t>(inner - 1)]);
    part.bodies.back().around = numbers.at(body_of_[holders_[static_cast<std::size_t>(inner)]]);
    numbers[inner] = static_cast<int>(part.bodies.size());
  }
  const Node& holder = model_.graph.nodes[holders_[static_cast<std::size_t>(body)]];
  const auto& declared = model_.bodies[static_cast<std::size_t>(body - 1)].inputs;
  for (const auto n : nodes) {
    Node node = model_.graph.nodes[n];
    if (node.op_type() == onnx::kBodyInputs && body_of_[n] == body) {
      for (std::size_t i = 0; i < node.outputs().size() && i < declared.size(); ++i)
        part.graph.inputs.push_back(
            input_of(declared[i], node.outputs()[i],
                     given(holder, onnx::inputs_before_unfolding(model_, holder), i, types, of_samples), of_samples));
      continue;
    }
    node.set_body(numbers.at(body_of_[n]));
    auto held = node.bodies();
    for (int& inner : held) inner = numbers.at(inner);
    node.set_bodies(std::move(held));
    part.graph.nodes.push_back(std::move(node));
  }
}

std::optional<onnx::Model> BodyParts::part(int body, const graph::ValueTypes& types, bool of_samples) const {
  if (holders_[static_cast<std::size_t>(body)] == kNowhere) return std::nullopt;
  onnx::Model part = rest_;
  add_nodes(part, body, types, of_samples);
  auto& made = part.graph;
  const bool has_nodes = std::any_of(made.nodes.begin(), made.nodes.end(), [](const Node& n) { return n.body() == 0; });
  std::set<std::string> names;
  for (const auto& input : made.inputs) names.insert(input.name);
  for (const auto& node : made.nodes) names.insert(node.outputs().begin(), node.outputs().end());
  for (const auto& node : made.nodes) {
    for (const auto& name : node.inputs()) {
      if (name.empty() || !names.insert(name).second) continue;
      if (const int i = index_.initializer(name); i != graph::kNone) {
        made.initializers.push_back(model_.graph.initializers[static_cast<std::size_t>(i)]);
      } else {
        auto type = known(types, name);
        made.inputs.push_back(onnx::make_value_info(name, type.type, std::move(type.shape)));
      }
    }
  }
  for (const auto& name : names) {
    if (const auto found = stated_.find(name); found != stated_.end()) made.value_infos.push_back(*found->second);
  }
  const auto& inputs = made.inputs;
  const bool typed =
      std::all_of(inputs.begin(), inputs.end(), [](const auto& info) { return info.type != DataType::undefined; });
  return has_nodes && typed ? std::optional(std::move(part)) : std::nullopt;
}

}  // namespace detent::exec
