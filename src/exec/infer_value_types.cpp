#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "exec/emit.h"
#include "exec/guarded_session.h"
#include "exec/message.h"
#include "exec/probe_bodies.h"
#include "exec/session.h"
#include "graph/index.h"
#include "onnx/bodies.h"
#include "onnx/write.h"

namespace detent::exec {
namespace {

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
    const auto& [type, shape] = types.at(name);
    // The runtime tells an unknown rank as 0.
    return onnx::make_value_info(name, type, shape && !shape->empty() ? shape : std::nullopt);
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

}  // namespace

graph::ValueTypes infer_value_types(const PortsOf& ports_of, const onnx::Model& model, const Shapes& input_shapes) {
  graph::ValueTypes types;
  // Values that follow from given shapes may be folded anywhere, for which the runtime needs all nodes.
  const bool in_parts = input_shapes.empty() && model.bodies.empty() && model.graph.nodes.size() > kNodesAtOnce;
  if (!in_parts || !probe_in_parts(ports_of, model, types))
    probe_with_sample_shapes(ports_of, model, input_shapes, types);
  graph::add_initializers(model, types);
  if (!model.bodies.empty()) probe_bodies(ports_of, model, input_shapes, types);
  return types;
}

graph::ValueTypes infer_value_types(const Runtime& runtime, const onnx::Model& model, const Shapes& input_shapes) {
  return infer_value_types(guarded_ports(runtime), model, input_shapes);
}

}  // namespace detent::exec
