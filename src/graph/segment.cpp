#include "graph/segment.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/numbers.h"
#include "graph/execution.h"
#include "onnx/write.h"

namespace detent::graph {
namespace {

// All that a node reads: its inputs and what its bodies take from around it.
std::vector<std::string> reads_of(const onnx::Model& model, const onnx::Node& node) {
  std::vector<std::string> names;
  for (const auto& name : node.inputs()) {
    if (!name.empty()) names.push_back(name);
  }
  for (auto& name : captured_names(model, node)) names.push_back(std::move(name));
  return names;
}

// Nodes that compute from constants alone belong to no segment: each takes those that it needs along.
class Flow {
 public:
  Flow(const onnx::Model& model, const Index& index) : index_(index), depends_(depends_on_input(model, index)) {}

  bool is_constant(int node) const { return !depends_[static_cast<std::size_t>(node)]; }
  bool is_activation(const std::string& name) const {
    const int producer = index_.producer(name);
    if (producer != kNone) return !is_constant(producer);
    return index_.initializer(name) == kNone && index_.is_input(name);
  }

 private:
  const Index& index_;
  std::vector<bool> depends_;
};

Segment make_segment(const onnx::Model& model, const Index& index, const Flow& flow, int begin, int end) {
  Segment segment{begin, end, {}, {}};
  std::set<std::string> seen;
  for (int n = begin; n < end; ++n) {
    const auto& node = model.graph.nodes[static_cast<std::size_t>(n)];
    for (const auto& name : reads_of(model, node)) {
      if (flow.is_activation(name) && index.producer(name) < begin && seen.insert(name).second)
        segment.inputs.push_back(name);
    }
    if (flow.is_constant(n)) continue;
    for (const auto& name : node.outputs()) {
      const auto readers = index.consumers(name);
      if (!name.empty() && !readers.empty() && readers.back() >= end) segment.outputs.push_back(name);
    }
  }
  return segment;
}

// The segment's own nodes and all constant ones that they need, in order.
std::set<int> nodes_of(const onnx::Model& model, const Index& index, const Segment& segment) {
  const Flow flow(model, index);
  std::set<int> nodes;
  std::vector<int> open;
  for (int n = segment.begin; n < segment.end; ++n) {
    const auto& outputs = model.graph.nodes[static_cast<std::size_t>(n)].outputs();
    const bool is_output =
        std::any_of(outputs.begin(), outputs.end(), [&](const auto& o) { return index.is_output(o); });
    if (!flow.is_constant(n) || is_output) open.push_back(n);
  }
  while (!open.empty()) {
    const int n = open.back();
    open.pop_back();
    if (!nodes.insert(n).second) continue;
    for (const auto& name : reads_of(model, model.graph.nodes[static_cast<std::size_t>(n)])) {
      const int producer = index.producer(name);
      if (producer != kNone && flow.is_constant(producer)) open.push_back(producer);
    }
  }
  return nodes;
}

int segment_of(const std::vector<Segment>& segments, int node) {
  const auto after =
      std::upper_bound(segments.begin(), segments.end(), node, [](int n, const Segment& s) { return n < s.begin; });
  return static_cast<int>(after - segments.begin()) - 1;
}

std::vector<int> reading_segments(const std::vector<Segment>& segments, const Index& index, const std::string& value,
                                  int producer) {
  std::set<int> readers;
  for (const int node : index.consumers(value)) readers.insert(segment_of(segments, node));
  readers.erase(producer);
  return {readers.begin(), readers.end()};
}

}  // namespace

Chain make_chain(const onnx::Model& model, const Index& index, const std::vector<int>& cuts) {
  Chain chain;
  const Flow flow(model, index);
  int begin = 0;
  for (const int cut : cuts) {
    chain.segments.push_back(make_segment(model, index, flow, begin, cut));
    begin = cut;
  }
  chain.segments.push_back(make_segment(model, index, flow, begin, static_cast<int>(model.graph.nodes.size())));

  std::map<std::pair<int, std::vector<int>>, std::vector<std::string>> groups;
  for (const auto& input : model.graph.inputs) {
    if (index.initializer(input.name) != kNone) continue;
    auto readers = reading_segments(chain.segments, index, input.name, 0);
    if (!readers.empty()) groups[{0, std::move(readers)}].push_back(input.name);
  }
  for (std::size_t s = 0; s < chain.segments.size(); ++s) {
    const int producer = static_cast<int>(s);
    for (const auto& value : chain.segments[s].outputs)
      groups[{producer, reading_segments(chain.segments, index, value, producer)}].push_back(value);
  }
  for (auto& [key, values] : groups) {
    const auto& [producer, readers] = key;
    // A process that goes on with other cuts must not take the records of these for its own.
    Hasher hasher;
    for (const auto& value : values) {
      hasher.add(value.size());
      hasher.add(value);
    }
    auto name = fmt::format("lane{}-{}-{}", chain.lanes.size(), producer, hasher.result().text());
    chain.lanes.push_back({std::move(name), std::move(values), producer, readers});
  }
  return chain;
}

std::vector<int> harmless_cuts(const onnx::Model& model, const Index& index, const ValueTypes& types,
                               const std::unordered_set<std::string>& observed) {
  const Flow flow(model, index);
  const auto may_cross = [&](const std::string& value) {
    if (!flow.is_activation(value)) return true;
    const auto type = type_of(model, types, value);
    if (type == onnx::DataType::undefined || type == onnx::DataType::string) return false;
    // No fusion of the runtime is interested in integers.
    return index.is_input(value) || observed.contains(value) || onnx::holds_integers(type);
  };
  // How many values cross each position that must not, by the ends of their lives.
  std::vector<int> change(model.graph.nodes.size() + 2, 0);
  const auto note = [&](const std::string& value, int made_at) {
    const auto readers = index.consumers(value);
    if (value.empty() || readers.empty() || may_cross(value)) return;
    ++change[static_cast<std::size_t>(made_at + 1)];
    --change[static_cast<std::size_t>(readers.back() + 1)];
  };
  for (const auto& input : model.graph.inputs) {
    if (index.initializer(input.name) == kNone) note(input.name, -1);
  }
  const int count = static_cast<int>(model.graph.nodes.size());
  for (int n = 0; n < count; ++n) {
    for (const auto& name : model.graph.nodes[static_cast<std::size_t>(n)].outputs()) note(name, n);
  }
  std::vector<int> cuts;
  const auto inside = cuts_inside_bodies(model);
  int forbidden = change[0];
  for (int cut = 1; cut < count; ++cut) {
    forbidden += change[static_cast<std::size_t>(cut)];
    if (forbidden == 0 && !inside[static_cast<std::size_t>(cut)]) cuts.push_back(cut);
  }
  return cuts;
}

onnx::Model segment_model(const onnx::Model& model, const Index& index, const ValueTypes& types, const Segment& segment,
                          const std::unordered_set<std::string>& shapeless,
                          const std::unordered_set<std::string>& ranks_only) {
  const bool whole = segment.begin == 0 && segment.end == static_cast<int>(model.graph.nodes.size());
  if (whole) return model;
  onnx::Model part = model;
  auto& graph = part.graph;
  graph.nodes.clear();
  for (const int n : nodes_of(model, index, segment))
    graph.nodes.push_back(model.graph.nodes[static_cast<std::size_t>(n)]);
  std::set<std::string> used, made;
  for (const auto& node : graph.nodes) {
    for (auto& name : reads_of(model, node)) used.insert(std::move(name));
    made.insert(node.outputs().begin(), node.outputs().end());
  }
  std::erase_if(graph.initializers, [&](const auto& tensor) { return !used.contains(tensor.name); });
  std::erase_if(graph.value_infos,
                [&](const auto& info) { return !made.contains(info.name) || index.is_output(info.name); });
  std::erase_if(graph.outputs, [&](const auto& info) { return !made.contains(info.name); });
  std::set<std::string> outputs;
  for (const auto& info : graph.outputs) outputs.insert(info.name);

  const auto info_of = [&](const std::string& name) { return told_info(model, types, name); };
  const auto stated = [](const std::vector<onnx::ValueInfo>& infos, const std::string& name) {
    return std::find_if(infos.begin(), infos.end(), [&](const auto& info) { return info.name == name; });
  };
  graph.inputs.clear();
  for (const auto& name : segment.inputs) {
    const auto own = stated(model.graph.inputs, name);
    const auto inner = stated(model.graph.value_infos, name);
    if (ranks_only.contains(name)) {
      auto& info = graph.inputs.emplace_back(info_of(name));
      if (info.shape) info = onnx::make_value_info(name, info.type, std::vector<onnx::Dim>(info.shape->size()));
    } else if (!shapeless.contains(name)) {
      graph.inputs.push_back(own != model.graph.inputs.end() ? *own : info_of(name));
    } else if (inner != model.graph.value_infos.end()) {
      graph.inputs.push_back(*inner);
    } else {
      graph.inputs.push_back(onnx::make_value_info(name, type_of(model, types, name), std::nullopt));
    }
  }
  for (const auto& name : segment.outputs) {
    if (outputs.insert(name).second) graph.outputs.push_back(info_of(name));
  }
  if (graph.outputs.empty() && !graph.nodes.empty())
    graph.outputs.push_back(info_of(graph.nodes.back().outputs().front()));
  return part;
}

bool contradicts(const std::vector<std::int64_t>& shape, const std::optional<std::vector<onnx::Dim>>& stated) {
  if (!stated || stated->empty()) return false;
  if (stated->size() != shape.size()) return true;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if ((*stated)[d].is_static() && (*stated)[d].value != shape[d]) return true;
  }
  return false;
}

}  // namespace detent::graph
