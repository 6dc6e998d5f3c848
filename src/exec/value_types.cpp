// Bodies as models of their own, for what the runtime infers about the values in them.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "exec/emit.h"
#include "exec/guarded_session.h"
#include "exec/session.h"
#include "graph/execution.h"
#include "graph/index.h"
#include "graph/rewrites/rewrite.h"
#include "onnx/bodies.h"
#include "onnx/model.h"
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
  return {found->second.type, graph::told_shape(types, value)};
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

// All of a model but its bodies and, of its graph, nodes, initializers, inputs, outputs and value_infos.
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

// The bodies of a model, which must outlive the object. A part costs no more than the body has nodes.
class BodyParts {
 public:
  explicit BodyParts(const onnx::Model& model)
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

  // The nodes of a body of the model, with bodies inside of it. What it reads from outside, and its own inputs, are
  // inputs of the graph, with the types and shapes that `types` has of them. With `of_samples` the shapes are taken to
  // be those of samples at hand, and what a Loop carries to keep its own. nullopt where the body has no nodes, or a
  // value that it reads has a type that no input of a model can have.
  std::optional<onnx::Model> part(int body, const graph::ValueTypes& types, bool of_samples) const {
    if (holders_[static_cast<std::size_t>(body)] == kNowhere) return std::nullopt;
    onnx::Model part = rest_;
    add_nodes(part, body, types, of_samples);
    auto& made = part.graph;
    const bool has_nodes =
        std::any_of(made.nodes.begin(), made.nodes.end(), [](const Node& n) { return n.body() == 0; });
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

 private:
  struct Inside {
    std::vector<int> bodies;  // itself and those inside of it
    std::vector<std::size_t> nodes;
  };

  // Nodes in the model's order, outer bodies before those inside of them.
  Inside inside(int body) const {
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
  void add_nodes(onnx::Model& part, int body, const graph::ValueTypes& types, bool of_samples) const {
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

  const onnx::Model& model_;
  graph::Index index_;
  std::vector<int> body_of_;
  onnx::Model rest_;
  // By body.
  std::vector<std::size_t> holders_;  // nodes
  std::vector<std::vector<std::size_t>> nodes_;
  std::vector<std::vector<int>> inner_;
  std::unordered_map<std::string_view, const onnx::ValueInfo*> stated_;
};

// The runtime looks for each value among all outputs of the graph, and here every value is one: time that grows with
// the square of the nodes. So a large model is probed in parts of so many nodes.
constexpr std::size_t kNodesAtOnce = 4096;

using Shapes = std::map<std::string, std::vector<std::int64_t>>;

// With shapes given, folding what follows from them finds those of Reshapes as well.
SessionMode tuning_for(const Shapes& input_shapes) {
  return input_shapes.empty() ? SessionMode::inspect : SessionMode::lean;
}

// Of a model whose opset is newer than the runtime: with an opset that it knows, it names an operator that it lacks.
void name_new_operator(const PortsOf& ports_of, onnx::Model model, const Error& error) {
  const auto known = known_opset(error.what());
  if (!known) return;
  model.set_opset("", *known);
  try {
    (void)ports_of(model, {}, SessionMode::inspect);
  } catch (const Error& inner) {
    const auto name = unknown_operator(inner.what());
    if (!name.empty()) throw bad_input(fmt::format("{}, without operator {}", error.what(), name), error.hint());
  }
}

void probe(const PortsOf& ports_of, const onnx::Model& model, const Shapes& input_shapes, SessionMode tuning,
           graph::ValueTypes& types) {
  EmitOptions options;
  options.input_shapes = input_shapes;
  const auto body_of = onnx::body_of_nodes(model);
  for (std::size_t n = 0; n < body_of.size(); ++n) {
    if (body_of[n] != 0) continue;  // nothing in a body can be an output
    for (const auto& name : model.graph.nodes[n].outputs()) {
      if (!name.empty()) options.outputs.push_back(name);
    }
  }
  if (options.outputs.empty()) throw bad_input(fmt::format("model '{}' has no nodes", model.path.string()));
  try {
    const auto [inputs, outputs] = ports_of(model, options, tuning);
    for (const auto& port : inputs) types[port.name] = port.type;
    for (const auto& port : outputs) types[port.name] = port.type;
  } catch (const SessionDied&) {
    throw;
  } catch (const Error& error) {
    name_new_operator(ports_of, model, error);
    throw;
  }
}

// Cuts a model into parts, each of which takes what was found for the values of those before it.
class Parts {
 public:
  explicit Parts(const onnx::Model& model) : model_(model), index_(model), rest_(model_without_graph(model)) {
    for (const auto& input : model.graph.inputs) stated_[input.name] = &input;
    for (const auto& info : model.graph.value_infos) stated_[info.name] = &info;
  }

  /// The nodes [begin, end) as a model; nullopt where one of them reads what cannot be the input of a model.
  std::optional<onnx::Model> part(std::size_t begin, std::size_t end, const graph::ValueTypes& types) const {
    onnx::Model part = rest_;
    auto& made = part.graph;
    std::unordered_set<std::string> seen;
    bool possible = true;
    const auto read = [&](const std::string& name) {
      if (name.empty() || !seen.insert(name).second) return;
      const int initializer = index_.initializer(name);
      const int producer = index_.producer(name);
      const bool input =
          index_.is_input(name) || (producer != graph::kNone && static_cast<std::size_t>(producer) < begin);
      if (initializer != graph::kNone)
        made.initializers.push_back(model_.graph.initializers[static_cast<std::size_t>(initializer)]);
      if (input) made.inputs.push_back(info_of(name, types));
      possible = possible && (!input || made.inputs.back().type != onnx::DataType::undefined);
    };
    if (begin == 0) {
      for (const auto& input : model_.graph.inputs) read(input.name);
    }
    for (std::size_t n = begin; n < end; ++n) {
      const auto& node = model_.graph.nodes[n];
      for (const auto& name : node.inputs()) read(name);
      for (const auto& name : graph::captured_names(model_, node)) read(name);
      for (const auto& name : node.outputs()) {
        if (const auto found = stated_.find(name); found != stated_.end()) made.value_infos.push_back(*found->second);
      }
      made.nodes.push_back(node);
    }
    return possible ? std::optional(std::move(part)) : std::nullopt;
  }

 private:
  onnx::ValueInfo info_of(const std::string& name, const graph::ValueTypes& types) const {
    if (const auto found = stated_.find(name); found != stated_.end()) return *found->second;
    return onnx::make_value_info(name, types.at(name).type, graph::told_shape(types, name));
  }

  const onnx::Model& model_;
  graph::Index index_;
  onnx::Model rest_;  // all but the nodes and what they read
  std::unordered_map<std::string, const onnx::ValueInfo*> stated_;
};

bool probe_in_parts(const PortsOf& ports_of, const onnx::Model& model, graph::ValueTypes& types) {
  const Parts parts(model);
  const std::size_t count = model.graph.nodes.size();
  for (std::size_t begin = 0; begin < count; begin += kNodesAtOnce) {
    const auto part = parts.part(begin, std::min(begin + kNodesAtOnce, count), types);
    if (!part) return false;
    probe(ports_of, *part, {}, SessionMode::inspect, types);
  }
  return true;
}

// The nodes before the first one that holds bodies.
onnx::Model before_bodies(const onnx::Model& model) {
  onnx::Model part = model_without_graph(model);
  part.graph.inputs = model.graph.inputs;
  part.graph.initializers = model.graph.initializers;
  const auto body_of = onnx::body_of_nodes(model);
  for (std::size_t n = 0; n < body_of.size() && model.graph.nodes[n].bodies().empty(); ++n) {
    if (body_of[n] == 0) part.graph.nodes.push_back(model.graph.nodes[n]);
  }
  return part;
}

// A branch that no sample takes may contradict their shapes, so that the runtime takes no model with both. Then shapes
// of the samples are found up to the first body, and in each body that agrees with them.
void probe_with_sample_shapes(const PortsOf& ports_of, const onnx::Model& model, const Shapes& input_shapes,
                              graph::ValueTypes& types) {
  try {
    probe(ports_of, model, input_shapes, tuning_for(input_shapes), types);
    return;
  } catch (const SessionDied&) {
    throw;
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::bad_input || input_shapes.empty() || model.bodies.empty()) throw;
  }
  probe(ports_of, model, {}, SessionMode::inspect, types);
  if (const auto part = before_bodies(model); !part.graph.nodes.empty())
    probe(ports_of, part, input_shapes, tuning_for(input_shapes), types);
}

// From the outside to the inside, since a body reads values from around it. What the runtime cannot load alone, as a
// branch that no sample takes, keeps what the model says.
void probe_bodies(const PortsOf& ports_of, const onnx::Model& model, const Shapes& input_shapes,
                  graph::ValueTypes& types) {
  const BodyParts parts(model);
  for (int body = 1; body <= static_cast<int>(model.bodies.size()); ++body) {
    const auto part = parts.part(body, types, !input_shapes.empty());
    if (!part) continue;
    for (const auto& input : part->graph.inputs)
      types.try_emplace(input.name, graph::ValueType{input.type, input.shape});
    try {
      probe(ports_of, *part, {}, tuning_for(input_shapes), types);
    } catch (const SessionDied&) {
      throw;
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::bad_input) throw;
    }
  }
}

graph::ValueTypes types_of_loadable(const PortsOf& ports_of, const onnx::Model& model, const Shapes& input_shapes) {
  graph::ValueTypes types;
  // Values that follow from given shapes may be folded anywhere, for which the runtime needs all nodes.
  const bool in_parts = input_shapes.empty() && model.bodies.empty() && model.graph.nodes.size() > kNodesAtOnce;
  if (!in_parts || !probe_in_parts(ports_of, model, types))
    probe_with_sample_shapes(ports_of, model, input_shapes, types);
  graph::add_initializers(model, types);
  if (!model.bodies.empty()) probe_bodies(ports_of, model, input_shapes, types);
  return types;
}

}  // namespace

graph::ValueTypes infer_value_types(const PortsOf& ports_of, const onnx::Model& given, const Shapes& input_shapes) {
  const auto& nodes = given.graph.nodes;
  if (std::none_of(nodes.begin(), nodes.end(), [](const auto& node) { return node.is("Range"); }))
    return types_of_loadable(ports_of, given, input_shapes);
  auto model = given;
  if (graph::give_ranges_scalars(model, {}).empty()) return types_of_loadable(ports_of, given, input_shapes);
  auto types = types_of_loadable(ports_of, model, input_shapes);
  const graph::Index known(given);
  std::erase_if(types, [&](const auto& entry) {
    const auto& value = entry.first;
    return known.producer(value) == graph::kNone && known.initializer(value) == graph::kNone && !known.is_input(value);
  });
  return types;
}

graph::ValueTypes infer_value_types(const Runtime& runtime, const onnx::Model& model, const Shapes& input_shapes) {
  return infer_value_types(guarded_ports(runtime), model, input_shapes);
}

}  // namespace detent::exec
